# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Formulas of arrays, without a model: each returns a loss per pair, row or token."""

from dovetail_tune.losses.contrastive import Hardest, hardest, info_nce, triplet
from dovetail_tune.losses.divergence import divergence, divergence_topk
from dovetail_tune.losses.odds import odds_ratio
from dovetail_tune.losses.pairwise import pairwise
from dovetail_tune.losses.reward import binary_cross_entropy, bradley_terry, centering
from dovetail_tune.losses.target_margin import target_margin
from dovetail_tune.losses.unpaired import unpaired

__all__ = [
    "Hardest",
    "binary_cross_entropy",
    "bradley_terry",
    "centering",
    "divergence",
    "divergence_topk",
    "hardest",
    "info_nce",
    "odds_ratio",
    "pairwise",
    "target_margin",
    "triplet",
    "unpaired",
]
