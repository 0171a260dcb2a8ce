# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A corpus on disk: its index, shards, ledger, copies and verification."""
