# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Codes against Qwix's, bit for bit, and against what rounding to nearest means."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from qwix import QArray

from dovetail_quant.codes import (
    NF4,
    check,
    decode,
    dequantize,
    encode,
    nbytes,
    quantize,
    scales,
    weight_of,
)
from dovetail_quant.spec import Spec

QTYPES = {"int8": jnp.int8, "int4": jnp.int4, "nf4": "nf4", "fp8": jnp.float8_e4m3fn}
SPECS = [
    Spec(weight=weight, group=group, symmetric=symmetric)
    for weight in QTYPES
    for group in (None, 16, 6)
    for symmetric in ((True, False) if weight in ("int8", "int4") else (True,))
]


def weights(*shape: int) -> jax.Array:
    """Random, with an outlier row, a column of zeros, one of one sign and one of tiny numbers."""
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    w[..., 3, :] *= 40
    w[..., 0] = 0
    w[..., 1] = abs(w[..., 1]) + 1
    w[..., 2] *= 1e-30
    return jnp.asarray(w)


def same(got: jax.Array, expected: jax.Array) -> bool:
    equal = np.array_equal(np.asarray(got).view(np.uint8), np.asarray(expected).view(np.uint8))
    return got.dtype == expected.dtype and got.shape == expected.shape and equal


@pytest.mark.capability("codes and scales of Qwix")
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_equals_qwix_with_and_without_jit(spec: Spec) -> None:
    w = weights(2, 48, 7)
    expected = qwix.quantize(
        w,
        QTYPES[spec.weight],
        channelwise_axes=[0, 2],
        tiled_axes={1: spec.group} if spec.group else None,
        calibration_method="absmax" if spec.symmetric else "minmax",
    )
    for q in (quantize(w, spec), jax.jit(lambda w: quantize(w, spec))(w)):
        assert same(q.qvalue, expected.qvalue)
        assert same(q.scale, expected.scale)
        assert (q.zero_point is None) == spec.symmetric
        if not spec.symmetric:
            assert same(q.zero_point, expected.zero_point)
        assert same(dequantize(q), qwix.dequantize(expected))
        assert weight_of(q) == weight_of(expected) == spec.weight


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_no_other_code_is_nearer(spec: Spec) -> None:
    w = weights(48, 7)
    q = quantize(w, spec)
    every = {"nf4": range(16), "int4": range(-8, 8), "int8": range(-128, 128)}.get(spec.weight)
    if every is None:  # the finite float8 numbers: all bytes but the two nans
        table = np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float64)
        levels = table[np.isfinite(table)]
    else:
        levels = np.array(NF4) if spec.weight == "nf4" else np.array(every, np.float64)
    group = spec.group or 48
    scale, zero = (
        np.repeat(np.asarray(a).astype(np.float64), group, axis=0) if a is not None else 0.0
        for a in (q.scale, q.zero_point)
    )
    held = (levels[:, None, None] - np.asarray(zero)) * scale
    least = abs(held - np.asarray(w, np.float64)).min(axis=0)
    error = abs(np.asarray(dequantize(q), np.float64) - np.asarray(w, np.float64))
    # float32 rounds the quotient (ties may fall to the other side) and the product: 2 eps |w|,
    # and the zero point adds up to 255 steps before it takes them away again.
    assert (error <= least + 2**-22 * abs(np.asarray(w)) + 2**-16 * scale).all()


def test_stacks_are_quantized_each_by_itself() -> None:
    w, spec = weights(3, 48, 7), Spec(weight="int4", group=16, symmetric=False)
    mapped = jax.vmap(lambda w: quantize(w, spec))(w)
    assert jax.tree.all(jax.tree.map(same, quantize(w, spec), mapped))
    assert jax.tree.all(jax.tree.map(same, mapped[1], quantize(w[1], spec)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats_are_widened(dtype: jnp.dtype) -> None:
    w, spec = weights(48, 7).astype(dtype), Spec(weight="nf4", group=16)
    assert jax.tree.all(jax.tree.map(same, quantize(w, spec), quantize(w.astype("float32"), spec)))


def test_double_precision_is_rounded_to_single() -> None:
    w = weights(48, 7)
    with jax.enable_x64(True):
        q = quantize(jnp.asarray(np.asarray(w, np.float64) * (1 + 1e-12)), Spec())
    assert jax.tree.all(jax.tree.map(same, q, quantize(w, Spec())))


@pytest.mark.parametrize("spec", SPECS[::3], ids=str)
def test_encode_takes_any_groups_and_decode_inverts_it(spec: Spec) -> None:
    q = quantize(weights(48, 7), spec)
    scale, zero = q.scale[:1], None if q.zero_point is None else q.zero_point[:1]
    codes = q.qvalue[:2]  # two rows alone, as methods that round row by row need them
    assert same(encode(decode(codes, scale, zero, spec), scale, zero, spec), codes)


def test_what_lies_beyond_the_last_level_gets_its_code() -> None:
    one = jnp.ones((1, 1), jnp.float32)
    w = jnp.array([[-1e9], [1e9]])
    ends = {"int8": (-128, 127), "int4": (-8, 7), "nf4": (0, 15), "fp8": (-448, 448)}
    for weight, expected in ends.items():
        codes = encode(w, one, None, Spec(weight=weight))
        assert tuple(np.asarray(codes[:, 0]).astype(float)) == expected


def test_ties_go_to_the_even_integer_and_to_the_lower_level() -> None:
    one = jnp.ones((1, 1), jnp.float32)
    halves = jnp.array([[0.5], [1.5], [-0.5], [-1.5]])
    assert np.asarray(encode(halves, one, None, Spec())).ravel().tolist() == [0, 2, 0, -2]
    middle = jnp.array([[NF4[8] / 2]], jnp.float32)  # half of a float: both distances are exact
    assert int(encode(middle, one, None, Spec(weight="nf4"))[0, 0]) == 7


def test_bytes_count_half_of_four_bits() -> None:
    w = weights(48, 7)
    assert nbytes(quantize(w, Spec())) == 48 * 7 + 4 * 7
    assert nbytes(quantize(w, Spec(weight="fp8", group=6))) == 48 * 7 + 4 * 8 * 7
    assert nbytes(quantize(w, Spec(weight="nf4", group=16))) == 24 * 7 + 4 * 3 * 7
    uneven = Spec(weight="int4", symmetric=False)  # 7 zero points take 4 bytes
    assert nbytes(quantize(w, uneven)) == 24 * 7 + 4 * 7 + 4
    assert nbytes(jax.eval_shape(lambda: quantize(w, uneven))) == 24 * 7 + 4 * 7 + 4


def test_a_group_that_does_not_divide() -> None:
    message = r"group must divide .*got group=20, K=48, .*; write group=12 or 16 or 24"
    with pytest.raises(ValueError, match=message):
        scales(weights(48, 7), Spec(group=20))
    with pytest.raises(ValueError, match=r"group must divide .*got group=96, K=48"):
        quantize(weights(48, 7), Spec(group=96))
    with pytest.raises(ValueError, match=r"group must divide .*got group=9, K=48"):
        encode(weights(48, 7), jnp.ones((5, 7)), None, Spec())
    with pytest.raises(ValueError, match=r"group must divide .*shape=\(0, 7\)"):
        quantize(jnp.zeros((0, 7)), Spec())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_that_are_not_finite(bad: float, symmetric: bool) -> None:
    message = r"finite weights, got w with inf, nan .*shape=\(48, 7\); write jnp.nan_to_num"
    with pytest.raises(ValueError, match=message):
        quantize(weights(48, 7).at[5, 6].set(bad), Spec(symmetric=symmetric))
    # XLA's parallel maximum on CPUs drops NaN.
    with pytest.raises(ValueError, match=r"finite weights, got w with inf, nan"):
        quantize(weights(4096, 64).at[2000, 6].set(bad), Spec(symmetric=symmetric))


def test_codes_that_are_not_canonical() -> None:
    q = quantize(weights(48, 7), Spec())
    message = r"scale must be \[\*b, G, N\].*got scale={}, codes=\(48, 7\); write jnp.broadcast_to"
    for shape in ((1, 1), (5, 7), (7,)):
        with pytest.raises(ValueError, match=message.replace("{}", re.escape(str(shape)))):
            check(QArray(q.qvalue, jnp.ones(shape)))
    with pytest.raises(ValueError, match=r"zero_point must have the shape of scale=\(1, 7\), got"):
        check(QArray(q.qvalue, q.scale, jnp.zeros((2, 7), jnp.int8)))
    three = qwix.quantize(weights(48, 7), "int3", channelwise_axes=[1])
    with pytest.raises(ValueError, match=r"codes must be .*qvalue=int4, qtype='int3'; write"):
        dequantize(three)
