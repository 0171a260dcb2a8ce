# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Formulas of arrays, without a model: each returns a loss per pair, row or token."""

from dovetail_tune.losses.pairwise import pairwise

__all__ = ["pairwise"]
