# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to stop a run: signals and preemption."""
