# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Estimates of memory, communication and time before a run, and remedies."""
