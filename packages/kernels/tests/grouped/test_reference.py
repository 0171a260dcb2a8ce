# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The work of the reference. Its answers are checked by the suite, in test_api.py."""

import jax
import jax.numpy as jnp

from dovetail_kernels.dispatch import Device
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.grouped.reference import REFERENCE

ROWS, INNER, OUTER, COUNT = 96, 40, 56, 5


def test_every_row_meets_every_matrix():
    shapes = ((ROWS, INNER), (COUNT, INNER, OUTER))
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    sizes = jax.ShapeDtypeStruct((COUNT,), jnp.int32)
    device = Device(platform="cpu", kind="cpu")
    options = {"rows": ROWS, "inner": INNER, "outer": OUTER, "count": COUNT}
    call = GroupedMatmulCall(**options, dtype="float32", device=device)
    work, run = REFERENCE.work(call), jax.jit(REFERENCE.run, static_argnums=0)
    cost = run.lower(call, GroupedMatmulInputs(x, w, sizes)).compile().cost_analysis()
    # XLA counts the masks and the sum over the groups too: 2 of 2 D per product.
    assert work.flops <= cost["flops"] <= (1 + 2 / INNER) * work.flops
    # XLA counts each operand of each operation; ours, what has to move.
    assert work.bytes <= cost["bytes accessed"] <= 3 * work.bytes
