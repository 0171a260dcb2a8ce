# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs that a program's jaxpr hides, stated in the names of its operations.

A reader that counts products, such as `dovetail_train.count_flops`, sees the body of a loop whose
length values decide, but not how often it runs. A name survives `vmap`, `grad`, `checkpoint`,
`scan` and `shard_map`, which scale the body themselves, and changes no arithmetic.
"""

import contextlib
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

import jax


def trips(total: Any, each: Any = 1) -> AbstractContextManager[Any]:
    """States that the loop directly inside has `total / each` full rounds, on average.

    Values may decide the rounds of each loop, and some may be padding. With symbolic sizes nothing
    is stated.

    Args:
        total: Work of all rounds, in any unit.
        each: Work of one round, in the same unit.
    """
    if not (isinstance(total, int | Fraction) and isinstance(each, int)):
        return contextlib.nullcontext()
    return jax.named_scope(f"trips={float(Fraction(total) / max(each, 1)):.17g}")


def foreign(flops: int, again: int = 0) -> AbstractContextManager[Any]:
    """States the FLOPs of each call of a kernel directly inside that states none itself.

    Args:
        flops: FLOPs of its products, without those of the forward pass that it repeats.
        again: FLOPs of the products that it repeats.
    """
    return jax.named_scope(f"flops={flops},again={again}")


def recomputed() -> AbstractContextManager[Any]:
    """States that the products inside repeat some of the forward pass.

    The name is that of `jax.checkpoint` for its second forward pass.
    """
    return jax.named_scope("rematted_computation")
