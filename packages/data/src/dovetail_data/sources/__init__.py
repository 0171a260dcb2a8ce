# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of records."""

from dovetail_data.sources.array_record import array_record as array_record
from dovetail_data.sources.arrow import arrow as arrow
from dovetail_data.sources.hf_directory import hf_directory as hf_directory
from dovetail_data.sources.jsonl import jsonl as jsonl
from dovetail_data.sources.parquet import parquet as parquet
from dovetail_data.sources.source import Corrupt as Corrupt
from dovetail_data.sources.source import Part as Part
from dovetail_data.sources.source import Source as Source
from dovetail_data.sources.source import records as records
from dovetail_data.sources.text import text as text
