# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Integer products against integer NumPy, exactly; digits against the rows they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qwix import QArray

from dovetail_quant.codes import layout
from dovetail_quant.codes.codes import quantize
from dovetail_quant.codes.layout import PackedWeights, pack_weights
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.w8a8 import (
    LONGEST,
    W8A8,
    Digits,
    digits,
    products,
    rounded,
)
from dovetail_quant.testing import problem

SPECS = [
    Spec(),
    Spec(symmetric=False),
    Spec(weight="int4", symmetric=False),
    Spec(weight="int4"),
]
RNG = np.random.default_rng(0)


def integers(q: QArray) -> tuple[np.ndarray, np.ndarray]:
    """Codes less zero points int64 [G, g, N], and scales float32 [G, N]."""
    groups, count = q.scale.shape
    codes = np.asarray(q.qvalue).astype(np.int64).reshape(groups, -1, count)
    zeros = 0 if q.zero_point is None else np.asarray(q.zero_point).astype(np.int64)[:, None]
    return codes - zeros, np.asarray(q.scale)


@pytest.mark.thorough
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("rows", [1, 6])
def test_sums_are_those_of_integers(monkeypatch: pytest.MonkeyPatch, spec: Spec, rows: int) -> None:
    monkeypatch.setattr(layout, "_BLOCK", {4: 48 * 9, 8: 48 * 9})
    given = problem(spec, rows=rows, shape=(48, 41))
    q, packed = RNG.integers(-127, 128, (rows, 48)).astype(np.int8), pack_weights(given.codes)
    codes, scale = integers(given.codes)
    grouped = q.reshape(rows, len(codes), -1).astype(np.int64).transpose(1, 0, 2)
    exact = grouped @ codes  # [G, R, N]
    y = np.asarray(jax.jit(products)(jnp.asarray(q), packed))
    assert y.shape == (rows, 41)
    right = (exact * scale[:, None].astype(np.float64)).sum(axis=0)
    # One rounding of the sum, one of its product, and G of the sum over groups.
    size = abs(exact * scale[:, None].astype(np.float64)).sum(axis=0)
    assert (abs(y - right) <= (len(codes) + 2) * 2.0**-24 * size).all()
    assert np.array_equal(y, exact[0].astype(np.float32) * scale)


@pytest.mark.thorough
def test_the_longest_group_does_not_overflow() -> None:
    codes = jnp.full((1, LONGEST), -128, jnp.int8)
    block = PackedWeights(
        values=codes,
        scales=jnp.ones((1, 1)),
        zeros=jnp.full((1, 1), 127, jnp.int8),
        weight="int8",
        group=LONGEST,
    )
    q = jnp.full((2, LONGEST), 127, jnp.int8)
    assert np.array_equal(products(q, block)[:, 0], np.float32([-127 * 255 * LONGEST] * 2))
    assert -127 * 255 * LONGEST > -(2**31)


@pytest.mark.parametrize("zero", [-893, 129, -32640, 32384])
@pytest.mark.parametrize("inputs", [48, LONGEST])
def test_zero_points_outside_of_the_codes(zero: int, inputs: int) -> None:
    codes = RNG.integers(-128, 128, (5, inputs)).astype(np.int8)
    block = PackedWeights(
        values=jnp.asarray(codes),
        scales=jnp.ones((5, 1)),
        zeros=jnp.full((5, 1), zero, jnp.int16),
        weight="int8",
        group=inputs,
    )
    q = RNG.integers(-127, 128, (3, inputs)).astype(np.int8)
    q[0] = 127  # its sum passes int32
    exact = q.astype(np.int64) @ (codes.astype(np.int64) - zero).T
    y = np.asarray(jax.jit(products)(jnp.asarray(q), block)).astype(np.float64)
    assert (abs(y - exact) <= 2**-22 * abs(exact)).all()
    fits = abs(exact) < 2**31 - 2**11
    assert np.array_equal(y[fits], exact[fits].astype(np.float32))
    assert fits[1:].all()


@pytest.mark.thorough
@pytest.mark.parametrize("zero", [100, 130])
def test_terms_that_cancel_leave_an_exact_sum(zero: int) -> None:
    """float32 would be off by 2^5 in each of two terms near 2^30, and their difference is small."""
    codes = np.full((1, LONGEST), min(zero, 127), np.int8)
    codes[0, :77] -= 1
    block = PackedWeights(
        values=jnp.asarray(codes),
        scales=jnp.ones((1, 1)),
        zeros=jnp.full((1, 1), zero, jnp.int16),
        weight="int8",
        group=LONGEST,
    )
    q = RNG.integers(120, 128, (2, LONGEST)).astype(np.int8)
    exact = q.astype(np.int64) @ (codes.astype(np.int64) - zero).T
    assert np.array_equal(products(jnp.asarray(q), block), exact.astype(np.float32))


def test_rounding_is_that_of_numpy() -> None:
    x = RNG.standard_normal((5, 33)).astype(np.float32) * [[1e-30], [1], [1e30], [7], [0.1]]
    x = x.astype(np.float32)
    for run in (rounded, jax.jit(rounded)):
        q, step = run(jnp.asarray(x))
        expected = abs(x).max(axis=1, keepdims=True) * np.float32(1 / 127)
        assert np.array_equal(step, expected)
        assert np.array_equal(q, np.rint(x / expected).astype(np.int8))
        assert (abs(np.asarray(q).astype(int)).max(axis=1) == 127).all()


def test_digits_hold_what_float32_holds() -> None:
    x = (RNG.standard_normal((4, 300)) * RNG.lognormal(0, 3, (4, 300))).astype(np.float32)
    q, step = jax.jit(digits)(jnp.asarray(x))
    d = np.asarray(q).astype(np.float64).reshape(3, 4, 300)
    held = (d[0] + d[1] / 254 + d[2] / 254**2) * np.asarray(step).astype(np.float64)
    # Half of the last digit, 2^-24 of the largest, and two roundings of each number.
    most = abs(x).max(axis=1, keepdims=True)
    assert (abs(held - x) <= 1.05 * 2.0**-24 * most + 2 * 2.0**-24 * abs(x)).all()
    assert abs(d).max() == 127


@pytest.mark.thorough
@pytest.mark.parametrize("matmul", [W8A8(), Digits()], ids=str)
def test_rows_without_a_step(matmul: W8A8 | Digits) -> None:
    given = problem(Spec(), rows=5, shape=(48, 7))
    x = jnp.asarray(given.x).at[0].set(0.0).at[1, 3].set(jnp.inf).at[2, 4].set(jnp.nan)
    x = x.at[3].set(1e-37)  # a normal number whose step is not
    y = np.asarray(jax.jit(matmul)(x, matmul.prepare(given.codes)))
    assert not y[[0, 3]].any()
    assert not np.isfinite(y[[1, 2]]).any()
    assert np.isfinite(y[4]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 64])
def test_a_nan_among_many_inputs_is_seen(rows) -> None:
    """XLA's parallel maximum on CPUs drops NaN; small arrays are reduced without it."""
    x = jnp.ones((rows, 8192)).at[0, 5000].set(jnp.nan)
    for step in (rounded(x)[1], digits(x)[1]):
        assert not np.isfinite(step[0]).any()
        assert np.isfinite(step[1:]).all()


@pytest.mark.parametrize("spec", [Spec(), Spec(weight="int4")], ids=str)
def test_one_row_is_multiplied_as_two(spec: Spec) -> None:
    given = problem(spec, rows=1, shape=(48, 7))
    program = jax.jit(W8A8()).lower(jnp.asarray(given.x), pack_weights(given.codes)).as_text()
    dots = [line for line in program.splitlines() if "dot_general" in line]
    expected = "(tensor<2x48xi8>" if spec.weight == "int8" else "(tensor<2x24xi8>"
    assert dots
    assert all(expected in line for line in dots)


def test_no_wide_copy_of_a_weight() -> None:
    weights = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    for spec in (Spec(), Spec(weight="int4", group=128)):
        packed = jax.eval_shape(lambda w, s=spec: pack_weights(quantize(w, s)), weights)
        x = jax.ShapeDtypeStruct((1, 4096), jnp.float32)
        compiled = jax.jit(W8A8()).lower(x, packed).compile()
        assert compiled.memory_analysis().temp_size_in_bytes <= 2_000_000


def test_refusals() -> None:
    nf4 = problem(Spec(weight="nf4"), rows=1, shape=(6, 5))
    for matmul, name in ((W8A8(), "w8a8"), (Digits(), "digits")):
        message = rf"{name} multiplies integers, got codes=nf4; write matmul=Blocked\(\)"
        with pytest.raises(ValueError, match=message):
            matmul.prepare(nf4.codes)
    long = QArray(jnp.zeros((LONGEST + 1, 1), jnp.int8), jnp.ones((1, 1)))
    message = r"int32 sums of at most 65536 inputs, got group=65537; write Spec\(group=...\)"
    with pytest.raises(ValueError, match=message):
        W8A8().prepare(long)
    given = problem(Spec(), rows=1, shape=(6, 5))
    with jax.enable_x64(True):
        x = jnp.asarray(given.x, jnp.float64)
        with pytest.raises(TypeError, match=r"float32 holds, got x of dtype=float64; write matm"):
            Digits()(x, pack_weights(given.codes))
