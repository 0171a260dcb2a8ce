# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of output channels: whole, with a rest, or one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.quantized import blocks
from dovetail_kernels.quantized.api import quantized_matmul
from dovetail_kernels.quantized.layout import PackedWeights
from dovetail_kernels.quantized.pack import pack_weights
from dovetail_kernels.testing.quantized import cases, check

pytestmark = pytest.mark.thorough

RNG = np.random.default_rng(0)


@pytest.mark.usefixtures("traced_anew")
@pytest.mark.parametrize("name", ["int8, zero points", "int4, float64"])
def test_conforms_in_several_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, counts = blocks._blocks, []

    def counted(packed: PackedWeights, weights: int) -> tuple[int, int]:
        size, count = cut(packed, weights)
        counts.append(count)
        return size, count

    monkeypatch.setattr(blocks, "WEIGHTS", 1)  # eight channels a block
    monkeypatch.setattr(blocks, "_blocks", counted)
    (case,) = [case for case in cases() if case.name == name]
    check(functools.partial(quantized_matmul, impl="blocks"), case)
    assert len(counts) >= 2  # forward and backward
    assert min(counts) > 1


W = pack_weights(RNG.standard_normal((24, 21)).astype(np.float32), bits=4, group_size=12)


@pytest.mark.parametrize("outputs, sizes", [(16, [8]), (21, [8]), (7, [7]), (8, [8]), (15, [15])])
def test_the_last_block_may_overlap(outputs: int, sizes: list[int]) -> None:
    seen = []

    def channels(block: PackedWeights) -> jax.Array:
        seen.append(block.out_features)
        return block.scales.T

    w = jax.tree.map(lambda a: a[:outputs], W)
    found = blocks.by_outputs(channels, w, weights=8 * 24)
    np.testing.assert_array_equal(found, w.scales.T)
    assert seen == sizes


@pytest.mark.parametrize("outputs", [1024, 1000])
def test_only_a_block_is_dequantized(outputs: int) -> None:
    w = pack_weights(RNG.standard_normal((1024, outputs)).astype(np.float32), bits=4)
    x = jnp.ones((1, 1024))

    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, pull = jax.vjp(functools.partial(quantized_matmul, w=w, impl="blocks"), x)
        return y, pull(y)[0]

    memory = jax.jit(step).lower(x).compile().memory_analysis()
    # Two halves of 2^17 weights in float32, integers beside them; whole they are 4 MiB.
    assert memory.temp_size_in_bytes < 2**20
