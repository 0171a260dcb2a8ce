# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rejected steps, accumulation, and measurements inside an update."""
