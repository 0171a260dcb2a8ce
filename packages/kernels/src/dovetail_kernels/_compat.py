# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Functions of Pallas's Mosaic GPU with different signatures in different JAX versions.

JAX calls Mosaic GPU unstable. Tried on 0.10.2, 0.11.2 and 0.12.0.1.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas
from jax.experimental.pallas import mosaic_gpu

from dovetail_kernels.costs_in_names import foreign

# 0.10 needs it, 0.11 warns where it is given, 0.12 has none.
_INDEX = inspect.signature(mosaic_gpu.load).parameters.get("idx")
_LOAD_NEEDS_AN_INDEX = _INDEX is not None and _INDEX.default is inspect.Parameter.empty

# 0.10 passes no cost to XLA. 0.12 does.
_KERNEL_HAS_A_COST = "cost_estimate" in inspect.signature(mosaic_gpu.kernel).parameters


def kernel(
    body: Callable[..., None], *, cost: pallas.CostEstimate | None, **options: Any
) -> Callable[..., Any]:
    """Returns `mosaic_gpu.kernel(body, **options)`, with its cost where XLA can be told.

    Args:
        body: The kernel.
        cost: Its cost. Where XLA takes none, a name states the FLOPs.
        options: Other arguments of `mosaic_gpu.kernel`.
    """
    if cost is None:
        return mosaic_gpu.kernel(body, **options)
    if _KERNEL_HAS_A_COST:
        return mosaic_gpu.kernel(body, cost_estimate=cost, **options)

    def call(*arguments: Any) -> Any:
        with foreign(cost.flops):
            return mosaic_gpu.kernel(body, **options)(*arguments)

    return call


def load(ref: Any, layout: Any) -> jax.Array:
    """Loads the whole of `ref` into registers, in `layout`.

    The load is not `optimized`: an optimized load refuses global memory, since the elements of a
    thread need not be contiguous there.
    """
    index = ((),) if _LOAD_NEEDS_AN_INDEX else ()
    return mosaic_gpu.load(ref, *index, layout=layout, optimized=False)
