# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Launches of a run: their files, the lock, this machine."""
