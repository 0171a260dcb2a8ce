# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant against its equation, and against products of rounded activations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods import record
from dovetail_quant.methods.smooth import smooth

pytestmark = pytest.mark.capability("SmoothQuant")

_W8A8 = Spec(weight="int8", act="int8", method="smooth")


@pytest.fixture(autouse=True)
def _strict_dtypes():
    with jax.numpy_dtype_promotion("strict"):
        yield


def _problem(inputs=64, outputs=24, *, rows=120, seed=0):
    """w and x, of which three inputs are sixty times the others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, inputs)) + 0.2 * rng.normal(size=(rows, 1))
    x[:, [3, 20, 41]] *= 60
    x = x.astype(np.float32)
    w = (rng.normal(size=(inputs, outputs)) / 8).astype(np.float32)
    return w, x, record.update(record.empty(inputs), jnp.asarray(x))


def _w8a8(x, w, s):
    """(x / s) (s w) with rows of the one and columns of the other rounded to int8, float64."""
    x, w = np.asarray(x, np.float64) / s, np.asarray(w, np.float64) * s[:, None]
    a, b = np.abs(x).max(1, keepdims=True) / 127.5, np.abs(w).max(0) / 127.5
    rounded = np.clip(np.round(x / a), -128, 127) @ np.clip(np.round(w / b), -128, 127)
    return rounded * a * b


@pytest.mark.thorough
def test_the_error_of_eight_bit_products_falls_where_inputs_have_outliers() -> None:
    w, x, stats = _problem()
    s, q, _ = smooth(jnp.asarray(w), stats, _W8A8)
    exact = x.astype(np.float64) @ w
    before = np.linalg.norm(_w8a8(x, w, np.ones(64)) - exact)
    after = np.linalg.norm(_w8a8(x, w, np.asarray(s, np.float64)) - exact)
    assert after < before / 2
    # The codes are those of that product's weights.
    scaled = np.asarray(w, np.float64) * np.asarray(s, np.float64)[:, None]
    steps = np.clip(np.round(scaled / (np.abs(scaled).max(0) / 127.5)), -128, 127)
    assert np.mean(steps == np.asarray(q.qvalue)) > 0.995  # float32 breaks ties otherwise


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_the_scale_is_equation_4(alpha) -> None:
    w, x, stats = _problem()
    s, q, report = smooth(jnp.asarray(w), stats, _W8A8, alpha=alpha)
    inputs, weights = np.abs(x).max(0).astype(np.float64), np.abs(w).max(1).astype(np.float64)
    np.testing.assert_allclose(s, inputs**alpha / weights ** (1 - alpha), rtol=1e-5)
    np.testing.assert_allclose(report.alpha, alpha)
    dw = np.asarray(codes.dequantize(q)) / np.asarray(s)[:, None] - w
    np.testing.assert_allclose(report.error, ((x @ dw) ** 2).sum(), rtol=1e-3)
    dw = np.asarray(codes.dequantize(codes.quantize(jnp.asarray(w), _W8A8))) - w
    np.testing.assert_allclose(report.nearest, ((x @ dw) ** 2).sum(), rtol=1e-3)


@pytest.mark.thorough
def test_what_holds_nothing_is_not_smoothed() -> None:
    w, x, _ = _problem()
    x[:, 7], x[:, 8], w[9], w[10] = 0, 1e-6, 0, 1e-9
    stats = record.update(record.empty(64), jnp.asarray(x))
    s, q, _ = smooth(jnp.asarray(w), stats, _W8A8)
    np.testing.assert_array_equal(s[7:11], 1)
    assert (np.delete(s, [7, 8, 9, 10]) != 1).all()
    assert np.isfinite(codes.dequantize(q)).all()
    for weights, seen in ((w, record.empty(64)), (np.zeros_like(w), stats)):
        s, _, report = smooth(jnp.asarray(weights), seen, _W8A8)
        np.testing.assert_array_equal(s, 1)
        assert report.error == 0


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_dtypes_and_experts(dtype) -> None:
    w, _, stats = _problem()
    rounded = jnp.asarray(w, jnp.bfloat16)
    expected = smooth(rounded.astype(jnp.float32), stats, _W8A8)
    with jax.enable_x64(dtype == jnp.float64):
        wide = jnp.asarray(np.asarray(rounded), dtype)
        experts = jax.tree.map(lambda a: jnp.stack([a, a]), (wide, stats))
        mapped = jax.vmap(lambda w, s: smooth(w, s, _W8A8))(*experts)
        np.testing.assert_allclose(mapped[0][1], expected[0], rtol=1e-6)
        assert np.mean(mapped[1].qvalue[1] == expected[1].qvalue) > 0.99
        assert all(
            a.dtype == b.dtype
            for a, b in zip(jax.tree.leaves(mapped), jax.tree.leaves(expected), strict=True)
        )


def test_what_does_not_fit_is_refused() -> None:
    w, _, stats = _problem()
    with pytest.raises(ValueError, match=r"activations that are rounded.*act=None.*act='int8'"):
        smooth(jnp.asarray(w), stats, Spec(weight="int8", method="smooth"))
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\], got alpha=1.5; write alpha"):
        smooth(jnp.asarray(w), stats, _W8A8, alpha=1.5)
    with pytest.raises(ValueError, match=r"inputs of w.*gram of shape=\(64, 64\)"):
        smooth(jnp.asarray(w[:8]), stats, _W8A8)
