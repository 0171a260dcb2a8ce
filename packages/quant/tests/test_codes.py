# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Codes against Qwix's, bit for bit, and against what rounding to nearest means."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from qwix import QArray

from dovetail_quant.codes.codes import (
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
from dovetail_quant.codes.spec import Spec

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
    # Qwix widens the range of the column of one sign, and small groups may be of one sign.
    grouped = np.asarray(w).reshape(2, -1, spec.group or 48, 7)
    both = (grouped.min(2) <= 0) & (grouped.max(2) >= 0)
    assert 0.6 < both.mean() < 1
    wide = np.repeat(both, grouped.shape[2], axis=1)
    both, wide = (mask | spec.symmetric for mask in (both, wide))
    for q in (quantize(w, spec), jax.jit(lambda w: quantize(w, spec))(w)):
        assert same(q.qvalue[wide], expected.qvalue[wide])
        assert same(q.scale[both], expected.scale[both])
        assert (q.zero_point is None) == spec.symmetric
        if not spec.symmetric:
            assert q.zero_point.dtype == jnp.int16
            assert np.array_equal(q.zero_point[both], expected.zero_point[both])
        assert same(dequantize(q)[wide], qwix.dequantize(expected)[wide])
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


RANGES = {  # least and largest weight
    "above 0": (3.0, 4.0),
    "below 0": (-4.0, -3.0),
    "from 0": (0.0, 2.0),
    "far away": (10.0, 10.25),
}


@pytest.mark.thorough
@pytest.mark.parametrize("weight, steps", [("int8", 255), ("int4", 15)])
@pytest.mark.parametrize("name", RANGES)
def test_a_range_need_not_contain_zero(weight: str, steps: int, name: str) -> None:
    least, most = RANGES[name]
    w = np.random.default_rng(0).uniform(least, most, (48, 7)).astype(np.float32)
    w[0], w[1] = least, most
    q = quantize(jnp.asarray(w), Spec(weight=weight, symmetric=False))
    step = (most - least) / steps
    np.testing.assert_allclose(q.scale, step, rtol=1e-6)
    # The grid is that of whole steps from 0: its ends are off by half a step at most.
    low = np.iinfo(np.int8).min if weight == "int8" else -8
    assert np.array_equal(q.zero_point, np.full((1, 7), np.round(low - least / step)))
    error = np.abs(np.asarray(dequantize(q), np.float64) - w)
    inside = (w > least + step / 2) & (w < most - step / 2)
    # Two roundings of a float32 of the weight's size.
    assert error[inside].max() <= step / 2 + 2 * 2**-24 * abs(w).max()
    assert error.max() <= step * (1 + 1e-3)
    assert error.max() > step / 4  # the instrument works


@pytest.mark.thorough
@pytest.mark.parametrize("weight, ratio", [("int8", 127.5), ("int4", 2167.5)])
def test_a_range_beyond_the_zero_points_is_widened(weight: str, ratio: float) -> None:
    spec = Spec(weight=weight, symmetric=False)
    for width in (0.999, 1.001):  # of the narrowest that fits
        w = jnp.asarray([[50.0], [50.0 - width * 50.0 / ratio]])
        steps = 255 if weight == "int8" else 15
        scale = float(quantize(w, spec).scale[0, 0])
        assert scale * steps == pytest.approx(max(width, 1.0) * 50.0 / ratio, rel=1e-4)
    w = np.random.default_rng(0).choice([-1.0, 1.0], (1, 64)) * np.geomspace(1e-3, 1e3, 64)
    for narrow in (1.0, 1.0 - 1e-4):  # one number alone, and two that are near
        both = jnp.asarray(np.concatenate([w, narrow * w]), jnp.float32)
        q = quantize(both, spec)
        assert abs(np.asarray(q.zero_point, np.int64)).max() <= 2**15 - 2**7
        error = np.abs(np.asarray(dequantize(q), np.float64) - np.asarray(both))
        assert (error <= 2**-15.9 * np.abs(w)).all()
    # The number farthest from 0 is a whole number of steps.
    alone = jnp.asarray(w, jnp.float32)
    np.testing.assert_allclose(dequantize(quantize(alone, spec)), alone, rtol=2 * 2**-24)


@pytest.mark.thorough
def test_qwix_refuses_zero_points_that_it_has_not() -> None:
    w = jnp.concatenate([weights(48, 7), -weights(48, 7)])
    q = quantize(w, Spec(symmetric=False))
    with pytest.raises(ValueError, match="Zero point int16 should have the same dtype"):
        qwix.dequantize(q)
    theirs = dataclasses.replace(q, zero_point=q.zero_point.astype(jnp.int8))
    assert same(qwix.dequantize(theirs), dequantize(q))  # every range contains 0


@pytest.mark.thorough
def test_stacks_are_quantized_each_by_itself() -> None:
    w, spec = weights(3, 48, 7), Spec(weight="int4", group=16, symmetric=False)
    mapped = jax.vmap(lambda w: quantize(w, spec))(w)
    assert jax.tree.all(jax.tree.map(same, quantize(w, spec), mapped))
    assert jax.tree.all(jax.tree.map(same, mapped[1], quantize(w[1], spec)))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats_are_widened(dtype: jnp.dtype) -> None:
    w, spec = weights(48, 7).astype(dtype), Spec(weight="nf4", group=16)
    assert jax.tree.all(jax.tree.map(same, quantize(w, spec), quantize(w.astype("float32"), spec)))


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_what_lies_beyond_the_last_level_gets_its_code() -> None:
    one = jnp.ones((1, 1), jnp.float32)
    w = jnp.array([[-1e9], [1e9]])
    ends = {"int8": (-128, 127), "int4": (-8, 7), "nf4": (0, 15), "fp8": (-448, 448)}
    for weight, expected in ends.items():
        codes = encode(w, one, None, Spec(weight=weight))
        assert tuple(np.asarray(codes[:, 0]).astype(float)) == expected


@pytest.mark.thorough
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
    zeros = Spec(weight="int4", symmetric=False)
    assert nbytes(quantize(w, zeros)) == 24 * 7 + (4 + 2) * 7
    assert nbytes(jax.eval_shape(lambda: quantize(w, zeros))) == 24 * 7 + (4 + 2) * 7


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


@pytest.mark.thorough
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
