# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The packed layout: which byte holds which weight, and that a PackedWeights is a pytree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.quantized.layout import (
    PackedWeights,
    columns,
    dequantized,
    joined,
    nibbles,
    stored,
    unpack_weights,
)

RNG = np.random.default_rng(0)


def four_bits(groups: int, *, zeros: bool = True) -> tuple[np.ndarray, PackedWeights]:
    """q[5, 24], and it packed."""
    q = RNG.integers(-8, 8, (5, 24)).astype(np.int8)
    packed = PackedWeights(
        values=nibbles(jnp.asarray(q), group_size=24 // groups),
        scales=jnp.asarray(RNG.random((5, groups), np.float32)),
        zeros=jnp.asarray(RNG.integers(-8, 8, (5, groups)).astype(np.float32)) if zeros else None,
        bits=4,
    )
    return q, packed


def test_a_byte_pairs_the_halves_of_its_group() -> None:
    q = jnp.asarray([[-8, -7, 0, 7, 1, 2, 3, 4]], jnp.int8)
    found = nibbles(q, group_size=4)
    # (-8, 0), (-7, 7) of the first group, (1, 3), (2, 4) of the second, each 8 higher.
    assert np.asarray(found).tolist() == [[0x80, 0xF1, 0xB9, 0xCA]]
    assert found.dtype == np.uint8


@pytest.mark.thorough
def test_columns_are_those_of_the_nibbles() -> None:
    q, packed = four_bits(3)
    parts = columns(jnp.asarray(q), packed)
    for part, half in zip(parts, stored(packed), strict=True):
        np.testing.assert_array_equal(part + 8, half)
    np.testing.assert_array_equal(joined(parts, packed), q)


@pytest.mark.thorough
def test_unpack_is_the_formula() -> None:
    for groups, zeros in ((1, True), (3, True), (3, False)):
        q, packed = four_bits(groups, zeros=zeros)
        size = 24 // groups
        shift = 0 if packed.zeros is None else np.repeat(np.asarray(packed.zeros), size, 1)
        expected = (q - np.float64(shift)) * np.repeat(np.asarray(packed.scales), size, 1)
        np.testing.assert_allclose(unpack_weights(packed), expected.T, rtol=1e-6)
    assert unpack_weights(packed, dtype=jnp.bfloat16).dtype == jnp.bfloat16


def test_a_weight_at_its_zero_point_is_zero() -> None:
    values = jnp.full((1, 4), 37, jnp.int8)
    packed = PackedWeights(
        values=values, scales=jnp.full((1, 1), 0.1), zeros=jnp.full((1, 1), 37.0), bits=8
    )
    assert not np.asarray(unpack_weights(packed)).any()


def test_sizes() -> None:
    packed = four_bits(3)[1]
    assert (packed.in_features, packed.out_features) == (24, 5)
    assert (packed.groups, packed.group_size) == (3, 8)
    assert packed.nbytes == 5 * 12 + 2 * 4 * 5 * 3
    bfloat16 = PackedWeights(values=jnp.zeros((5, 24), jnp.bfloat16), bits=16)
    assert (bfloat16.groups, bfloat16.group_size, bfloat16.nbytes) == (1, 24, 240)
    np.testing.assert_array_equal(dequantized(bfloat16, jnp.float32)[0], np.zeros((5, 24)))


def test_a_packed_is_a_pytree_that_keeps_its_bits() -> None:
    packed = four_bits(3)[1]
    leaves, tree = jax.tree.flatten(packed)
    assert len(leaves) == 3
    again = jax.jit(lambda p: p)(jax.tree.unflatten(tree, leaves))
    assert again.bits == 4
    shapes = jax.eval_shape(lambda: packed)
    assert shapes.in_features == 24
