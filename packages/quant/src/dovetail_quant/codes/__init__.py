# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Codes of weights: specifications, arithmetic, layouts in memory."""
