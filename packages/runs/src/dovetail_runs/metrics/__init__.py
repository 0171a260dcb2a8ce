# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Scalars of a run: their writer, their reader, the account of time."""
