# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sources: files to records."""

from dovetail_data.sources.array_record import array_record
from dovetail_data.sources.arrow import arrow
from dovetail_data.sources.bagz import bagz
from dovetail_data.sources.hf_directory import hf_directory
from dovetail_data.sources.jsonl import jsonl
from dovetail_data.sources.parquet import parquet
from dovetail_data.sources.source import Corrupt, Part, Source, records
from dovetail_data.sources.text import text
from dovetail_data.sources.tfds import tfds

__all__ = [
    "Corrupt",
    "Part",
    "Source",
    "array_record",
    "arrow",
    "bagz",
    "hf_directory",
    "jsonl",
    "parquet",
    "records",
    "text",
    "tfds",
]
