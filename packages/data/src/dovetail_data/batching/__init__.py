# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches of rows: iterators, reading ahead, transfer to devices."""
