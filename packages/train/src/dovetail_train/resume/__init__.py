# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Continuation of a stored run: its contract, its description, conversions."""
