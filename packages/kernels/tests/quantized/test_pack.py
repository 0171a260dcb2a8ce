# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rounding to nearest, the weights that are quantized already, and every refusal."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail_kernels.quantized.layout import unpack_weights
from dovetail_kernels.quantized.pack import pack_weights

RNG = np.random.default_rng(0)
W = RNG.standard_normal((24, 5)).astype(np.float32)


def oracle(w: np.ndarray, *, bits: int, size: int, symmetric: bool) -> np.ndarray:
    """Half a scale for each weight [D, F]: the largest error of rounding to nearest."""
    grouped = w.T.astype(np.float64).reshape(w.shape[1], -1, size)
    if symmetric:
        scales = abs(grouped).max(2) / (2 ** (bits - 1) - 1)
    else:
        scales = (np.maximum(grouped.max(2), 0) - np.minimum(grouped.min(2), 0)) / (2**bits - 1)
    return np.repeat(scales, size, axis=1).T / 2


@pytest.mark.thorough
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits, size", [(8, 24), (8, 3), (4, 24), (4, 4)])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(w=hnp.arrays(np.float32, (24, 5), elements=st.floats(-1e3, 1e3, width=32)))
def test_rounds_to_nearest(w: np.ndarray, bits: int, size: int, symmetric: bool) -> None:
    packed = pack_weights(w, bits=bits, group_size=size, symmetric=symmetric)
    error = abs(np.asarray(unpack_weights(packed), np.float64) - w)
    half = oracle(w, bits=bits, size=size, symmetric=symmetric)
    # float32 rounds each step: some eps of the largest weight; scales below 2^-126 are 0.
    assert (error <= half * (1 + 1e-5) + 4e-7 * abs(w).max() + 256 * 2.0**-126).all()


def test_symmetric_scales_are_the_largest_over_127() -> None:
    packed = pack_weights(W)
    np.testing.assert_allclose(packed.scales[:, 0], abs(W).max(0) / 127, rtol=1e-6)
    assert packed.bits == 8
    assert packed.zeros is None
    assert abs(np.asarray(packed.values)).max(1).tolist() == [127] * 5
    np.testing.assert_array_equal(pack_weights(jnp.asarray(W, jnp.bfloat16)).values.dtype, jnp.int8)


def test_zero_weights_stay_zero() -> None:
    w = W.copy()
    w[:, 2], w[3, 1], w[:, 4] = 0, 0, 1e-39  # the last: its scale would not be normal
    for options in ({}, {"symmetric": False}, {"bits": 4, "group_size": 12, "symmetric": False}):
        found = np.asarray(unpack_weights(pack_weights(w, **options)))
        assert not found[:, [2, 4]].any()
        assert found[3, 1] == 0


@pytest.mark.thorough
def test_the_whole_range_of_float32() -> None:
    w = np.array([[3e38, -3e38], [-3e38, 1.0]], np.float32)
    for symmetric in (True, False):
        found = np.asarray(unpack_weights(pack_weights(w, symmetric=symmetric)))
        assert abs(found.astype(np.float64) - w).max() < 3e38 / 100


def test_sixteen_bits_are_bfloat16() -> None:
    packed = pack_weights(W, bits=16)
    np.testing.assert_array_equal(packed.values, jnp.asarray(W).T.astype(jnp.bfloat16))
    assert packed.scales is None


@pytest.mark.thorough
def test_four_bits_come_in_groups_of_128() -> None:
    assert pack_weights(RNG.standard_normal((256, 3)).astype(np.float32), bits=4).group_size == 128


def test_traced_weights() -> None:
    found, expected = (
        jax.jit(lambda w: pack_weights(w, bits=4, group_size=6))(W),
        pack_weights(W, bits=4, group_size=6),
    )
    np.testing.assert_array_equal(found.values, expected.values)


def quantized(
    dtype: str, *, groups: int = 1, zero: bool = False, low: int = -8, high: int = 8
) -> tuple[SimpleNamespace, np.ndarray]:
    """(qvalue, scale, zero_point) [24, 5], and the weights that they mean."""
    q = RNG.integers(low, high, (24, 5))
    scale = RNG.random((groups, 5), np.float32)
    point = RNG.integers(low, high, (groups, 5)) if zero else None
    shift = 0 if point is None else np.repeat(point, 24 // groups, axis=0)
    weights = (q - shift) * np.repeat(scale, 24 // groups, axis=0).astype(np.float64)
    given = SimpleNamespace(
        qvalue=jnp.asarray(q).astype(dtype),
        scale=jnp.asarray(scale),
        zero_point=None if point is None else jnp.asarray(point).astype(jnp.int32),
    )
    return given, weights


@pytest.mark.thorough
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    "dtype, low, high, bits, expected",
    [
        ("int8", -128, 128, None, 8),
        ("uint8", 0, 256, None, 8),
        ("int4", -8, 8, None, 4),
        ("uint4", 0, 16, None, 4),
        ("int8", -8, 8, 4, 4),
        ("uint8", 0, 16, 4, 4),
        ("uint4", 0, 16, 8, 8),
    ],
)
def test_quantized_weights_are_kept(
    dtype: str, low: int, high: int, bits: int | None, expected: int, zero: bool
) -> None:
    w, weights = quantized(dtype, groups=3, zero=zero, low=low, high=high)
    packed = pack_weights(w, bits=bits)
    assert (packed.bits, packed.groups) == (expected, 3)
    np.testing.assert_allclose(unpack_weights(packed), weights, rtol=1e-6, atol=1e-6)


@pytest.mark.thorough
def test_scales_are_repeated_along_both_axes() -> None:
    w, _ = quantized("int8")
    w.scale = jnp.asarray([[0.5], [2.0]])
    w.zero_point = jnp.full((4, 1), 3)
    packed = pack_weights(w)
    assert packed.scales.shape == packed.zeros.shape == (5, 4)
    expected = (np.asarray(w.qvalue, np.float64) - 3) * np.repeat([0.5, 2.0], 12)[:, None]
    np.testing.assert_allclose(unpack_weights(packed), expected, rtol=1e-6)


@pytest.mark.thorough
def test_quantized_weights_that_do_not_fit() -> None:
    w, _ = quantized("int8", low=-9, high=9)
    w.qvalue = w.qvalue.at[0, 0].set(-9).at[1, 0].set(8)
    with pytest.raises(ValueError, match=r"values in -8..7 for bits=4, got -9..8. Use bits=8"):
        pack_weights(w, bits=4)
    with pytest.raises(ValueError, match=r"traced int8 values fit bits=4.*astype\(jnp.int4\)"):
        jax.jit(lambda q: pack_weights(SimpleNamespace(**{**vars(w), "qvalue": q}), bits=4))(
            w.qvalue
        )
    with pytest.raises(ValueError, match=r"quantized already, got group_size=8, symmetric=True"):
        pack_weights(w, group_size=8)
    with pytest.raises(ValueError, match=r"symmetric=False. Leave them out"):
        pack_weights(w, symmetric=False)
    with pytest.raises(ValueError, match=r"bits 4 or 8, got .*bits=16. Use jax.vmap"):
        pack_weights(w, bits=16)
    with pytest.raises(ValueError, match=r"scale \[G, F\] .* got scale of shape \(7, 5\). Use"):
        pack_weights(SimpleNamespace(qvalue=w.qvalue, scale=jnp.ones((7, 5)), zero_point=None))
    with pytest.raises(ValueError, match=r"zero_point of shape \(5,\)"):
        pack_weights(SimpleNamespace(qvalue=w.qvalue, scale=w.scale, zero_point=jnp.ones(5)))
    points = jnp.ones((3, 5))
    with pytest.raises(ValueError, match=r"divide each other, got \[2, 3\]. Use jnp.repeat"):
        pack_weights(SimpleNamespace(qvalue=w.qvalue, scale=points[:2], zero_point=points))
    with pytest.raises(TypeError, match=r"got int16. Use .astype\(jnp.int8\)"):
        pack_weights(
            SimpleNamespace(qvalue=w.qvalue.astype(jnp.int16), scale=w.scale, zero_point=None)
        )


def test_float_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"bits 4, 8 or 16, got bits=2. Use one"):
        pack_weights(W, bits=2)
    with pytest.raises(ValueError, match=r"divides D, got group_size=7, D=24, bits=8. Use"):
        pack_weights(W, group_size=7)
    with pytest.raises(ValueError, match=r"got group_size=0, D=24"):
        pack_weights(W, group_size=0)
    with pytest.raises(ValueError, match=r"and is even, got group_size=3, D=24, bits=4"):
        pack_weights(W, bits=4, group_size=3)
    with pytest.raises(ValueError, match=r"got group_size=128, D=24, bits=4. Use another"):
        pack_weights(W, bits=4)
    with pytest.raises(ValueError, match=r"bits=16, without groups, got group_size=8"):
        pack_weights(W, bits=16, group_size=8)
    with pytest.raises(ValueError, match=r"finite weights, got w with inf or nan. Use jnp.nan"):
        pack_weights(np.where(W > 0, np.inf, W))
    with pytest.raises(ValueError, match=r"neither 0, got shape \(5,\). Use jax.vmap"):
        pack_weights(W[0])
    with pytest.raises(TypeError, match=r"float weights, got an array of int32. Use types.Simple"):
        pack_weights(W.astype(np.int32))
    with pytest.raises(TypeError, match=r"qvalue, scale and zero_point, got list. Use jnp.asarr"):
        pack_weights([[1.0]])


@pytest.mark.thorough
def test_weights_captured_by_jit_are_checked_and_packed():
    captured = jnp.asarray(W)
    packed = jax.jit(lambda: pack_weights(captured, bits=8))()
    np.testing.assert_array_equal(packed.values, pack_weights(captured, bits=8).values)
    wrong = captured.at[0, 0].set(jnp.nan)
    with pytest.raises(ValueError, match="pack_weights needs finite weights, got w with inf or"):
        jax.jit(lambda: pack_weights(wrong, bits=8))()
    q = SimpleNamespace(
        qvalue=jnp.full((4, 2), 9, jnp.uint8), scale=jnp.ones((1, 2)), zero_point=None
    )
    packed = jax.jit(lambda: pack_weights(q, bits=4))()
    np.testing.assert_array_equal(packed.values, pack_weights(q, bits=4).values)
    q.qvalue = q.qvalue + jnp.uint8(7)
    with pytest.raises(ValueError, match=r"needs values in 0..15 for bits=4, got 16..16"):
        jax.jit(lambda: pack_weights(q, bits=4))()
