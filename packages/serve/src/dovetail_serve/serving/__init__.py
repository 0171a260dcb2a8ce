# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Serving: batches, versions and statistics, without a protocol."""
