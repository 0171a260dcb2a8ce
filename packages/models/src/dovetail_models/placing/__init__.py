# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Placement on meshes: logical names, rules, Explicit axes."""
