# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: their instructions, sources, costs and buffers, from the HLO."""
