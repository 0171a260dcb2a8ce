# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Meshes of devices and processes: axes, slices, placement of batches."""
