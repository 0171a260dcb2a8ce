# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of Pallas's Mosaic GPU, which JAX calls unstable, where they differ between its versions.

Tried on 0.10.2, 0.11.2 and 0.12.0.1.
"""

import inspect
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu

# 0.10 needs it, 0.11 warns where it is given, 0.12 has none.
_INDEX = inspect.signature(mosaic_gpu.load).parameters.get("idx")
_LOAD_NEEDS_AN_INDEX = _INDEX is not None and _INDEX.default is inspect.Parameter.empty


def load(ref: Any, layout: Any) -> jax.Array:
    """The whole of a `ref` into registers, in `layout`.

    From global memory, where no thread's elements need to be contiguous: `optimized` would refuse.
    """
    index = ((),) if _LOAD_NEEDS_AN_INDEX else ()
    return mosaic_gpu.load(ref, *index, layout=layout, optimized=False)
