# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The modules and formulas that a block is made of, one concept per file."""
