# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of records."""

from dovetail_data.sources.jsonl import jsonl as jsonl
from dovetail_data.sources.source import Corrupt as Corrupt
from dovetail_data.sources.source import Part as Part
from dovetail_data.sources.source import Source as Source
from dovetail_data.sources.source import records as records
from dovetail_data.sources.text import text as text
