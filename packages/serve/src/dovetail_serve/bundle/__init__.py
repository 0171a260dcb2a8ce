# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A bundle on disk: its folder, manifest, arrays and golden answers."""
