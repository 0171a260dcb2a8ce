# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The work of XLA's own operation. Its answers are checked by the suite, in test_api.py."""

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels.dispatch import Device
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.grouped.ragged import RAGGED_DOT

ROWS, INNER, OUTER, COUNT = 96, 40, 56, 5


def call(platform):
    device = Device(platform=platform, kind=platform)
    sizes = {"rows": ROWS, "inner": INNER, "outer": OUTER, "count": COUNT}
    return GroupedMatmulCall(**sizes, dtype="float32", device=device)


def test_off_tpu_it_is_dense():
    shapes = ((ROWS, INNER), (COUNT, INNER, OUTER))
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    sizes = jax.ShapeDtypeStruct((COUNT,), jnp.int32)
    run = jax.jit(RAGGED_DOT.run, static_argnums=0)
    compiled = run.lower(call("cpu"), GroupedMatmulInputs(x, w, sizes)).compile()
    cost, work = compiled.cost_analysis(), RAGGED_DOT.work(call("cpu"))
    # XLA counts the masks too.
    assert work.flops <= cost["flops"] <= 1.05 * work.flops
    # XLA counts each operand of each operation; ours, what has to move.
    assert work.bytes <= cost["bytes accessed"] <= 3 * work.bytes
    assert compiled.memory_analysis().temp_size_in_bytes >= 4 * COUNT * ROWS * INNER


def test_on_tpu_it_is_one_pass():
    dense, work = RAGGED_DOT.work(call("gpu")), RAGGED_DOT.work(call("tpu"))
    assert work.flops == 2 * ROWS * INNER * OUTER
    assert work.bytes == 4 * (ROWS * INNER + COUNT * INNER * OUTER + ROWS * OUTER)
    assert dense.flops == COUNT * work.flops


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_it_refuses_nothing(platform):
    assert RAGGED_DOT.refuse(call(platform)) is None
