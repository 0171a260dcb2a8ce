# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""AWQ against a search in NumPy float64 on activations that were kept, and its promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods import record
from dovetail_quant.methods.awq import awq


@pytest.fixture(autouse=True)
def _strict_dtypes():
    with jax.numpy_dtype_promotion("strict"):
        yield


def _problem(inputs=48, outputs=20, *, rows=160, seed=0, spread=1.5):
    """w, x with inputs of unequal size, one of which was silent, and the statistics of x."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, inputs)) @ (
        np.eye(inputs) + 0.2 * rng.normal(size=(inputs, inputs)) / np.sqrt(inputs)
    )
    x = (x * rng.lognormal(0, spread, size=inputs)).astype(np.float32)
    x[:, 5] = 0
    w = rng.normal(size=(inputs, outputs)).astype(np.float32)
    return w, x, record.update(record.empty(inputs), jnp.asarray(x))


def _nearest(w, size):
    """w rounded to int4 with a scale and a zero for each group of `size` rows, float64.

    With a zero, because a symmetric group's largest weight stands between two codes, at 7.5 steps,
    and float32 takes either.
    """
    groups = w.reshape(len(w) // size, size, -1)
    low = groups.min(1, keepdims=True)
    scale = (groups.max(1, keepdims=True) - low) / 15
    zero = np.round(-8 - low / scale)
    return ((np.clip(np.round(groups / scale + zero), -8, 7) - zero) * scale).reshape(w.shape)


def _searched(w, x, size, grid):
    """The errors ||x (Q(s w)/s - w)||^2 over the grid of alpha, and s, as equation 5 has it."""
    w, x = np.asarray(w, np.float64), np.asarray(x, np.float64)
    mean = np.abs(x).mean(0)
    mean = np.maximum(mean / mean.max(), 1e-4)
    scales = [mean**a for a in np.linspace(0, 1, grid)]
    scales = [s / np.sqrt(s.max() * s.min()) for s in scales]
    return [
        ((x @ (_nearest(w * s[:, None], size) / s[:, None] - w)) ** 2).sum() for s in scales
    ], scales


@pytest.mark.capability("AWQ")
@pytest.mark.parametrize("size", [8, 48])
def test_it_finds_the_exponent_that_kept_activations_would_choose(size) -> None:
    w, x, stats = _problem()
    errors, scales = _searched(w, x, size, 11)
    best = int(np.argmin(errors))
    assert 0 < best < 10
    spec = Spec(weight="int4", group=size, symmetric=False)
    s, q, report = awq(jnp.asarray(w), stats, spec, grid=11)
    np.testing.assert_allclose(report.alpha, best / 10, rtol=1e-6)
    np.testing.assert_allclose(s, scales[best], rtol=1e-5)
    # A weight between two codes may fall to the other side in float32: a part in a thousand.
    np.testing.assert_allclose(report.error, errors[best], rtol=5e-3)
    np.testing.assert_allclose(report.nearest, errors[0], rtol=5e-3)
    np.testing.assert_allclose(report.signal, ((x.astype(np.float64) @ w) ** 2).sum(), rtol=1e-4)
    y = (x / np.asarray(s)) @ np.asarray(codes.dequantize(q)) - x @ w
    np.testing.assert_allclose(report.error, (y.astype(np.float64) ** 2).sum(), rtol=1e-3)


@pytest.mark.thorough
def test_inputs_that_are_alike_are_left_alone() -> None:
    """A weight that round-to-nearest holds exactly gains nothing: alpha is 0 and s is 1."""
    rng = np.random.default_rng(2)
    w = rng.integers(-7, 8, size=(16, 6)).astype(np.float32)
    w[0] = 7.5  # the largest: a step is 1
    w[0, ::2] *= -1
    _, _, stats = _problem(16, 6)
    held = jnp.asarray(np.where(np.arange(16)[:, None] == 0, -7.5, w))
    s, q, report = awq(held, stats, Spec(weight="int4"))
    np.testing.assert_array_equal(s, 1)
    assert (report.alpha, report.kept) == (0, 6)
    np.testing.assert_array_equal(q.qvalue, codes.quantize(held, Spec(weight="int4")).qvalue)


@pytest.mark.capability("AWQ")
@pytest.mark.slow
@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    spec=st.sampled_from([Spec(weight="int4", group=4, symmetric=False), Spec(weight="nf4")]),
    spread=st.sampled_from([0.0, 1.0, 4.0]),
    rows=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_it_is_never_worse_than_nearest_nor_clipping_than_not(spec, spread, rows, seed) -> None:
    w, x, stats = _problem(16, 6, rows=rows, seed=seed, spread=spread)
    w = jnp.asarray(w)
    (*_, report), (*_, clipped) = found = [
        awq(w, stats, spec, grid=5, clips=clips) for clips in ((), (0.9, 0.7))
    ]
    for s, q, r in found:
        dw = np.asarray(codes.dequantize(q) / s[:, None] - w)
        # float32 sums of 16 x 16 products.
        error = ((x.astype(np.float64) @ dw) ** 2).sum()
        np.testing.assert_allclose(r.error, error, rtol=1e-2, atol=1e-6 * report.signal)
    assert report.error <= report.nearest
    assert clipped.error <= report.error * (1 + 1e-6)  # another program rounds its sums otherwise


@pytest.mark.thorough
def test_clipping_pays_where_a_group_has_one_extreme() -> None:
    """Of a column with a weight four times the rest, on an input that hardly ever speaks, losing
    that weight is cheaper than rounding the others to it: by search over float64 scales."""
    w, x, stats = _problem(32, 6, spread=0)
    w = np.clip(w, -1.0, 1.0)
    w[3] *= 4 / np.abs(w[3])
    x[:, 3] *= 0.01
    stats = record.update(record.empty(32), jnp.asarray(x))
    stats = stats._replace(absmean=jnp.ones(32))  # no input is scaled
    ratios = (0.8, 0.6, 0.4, 0.25)
    scale = np.abs(w).max(0) / 7.5
    errors = [
        ((x @ (np.clip(np.round(w / (scale * r)), -8, 7) * scale * r - w)) ** 2).sum(0)
        for r in (1.0, *ratios)
    ]
    spec = Spec(weight="int4")
    _, q, report = awq(jnp.asarray(w), stats, spec, grid=2, clips=ratios)
    _, _, plain = awq(jnp.asarray(w), stats, spec, grid=2)
    np.testing.assert_allclose(report.error, np.min(errors, axis=0).sum(), rtol=5e-3)
    chosen = np.asarray((1.0, *ratios))[np.argmin(errors, axis=0)]
    np.testing.assert_allclose(q.scale[0], scale * chosen, rtol=1e-5)
    assert (report.alpha, report.kept, plain.kept) == (0, 0, 6)
    assert report.error < plain.error / 2


@pytest.mark.thorough
def test_groups_are_clipped_by_their_own_inputs() -> None:
    """Groups that share no products of inputs are independent sites: clipped alike."""
    w, x, _ = _problem(24, 40, rows=90, spread=2.5)
    x[:45, :12], x[45:, 12:] = 0, 0
    spec, clips = Spec(weight="int4", group=12), (0.9, 0.8, 0.7)
    stats = record.update(record.empty(24), jnp.asarray(x))
    s, q, report = awq(jnp.asarray(w), stats, spec, grid=6, clips=clips)
    assert report.alpha > 0
    for g, rows in ((0, slice(0, 12)), (1, slice(12, 24))):
        scaled = w[rows] * np.asarray(s)[rows, None]
        seen = x[:, rows] / np.asarray(s)[rows]
        scale = np.abs(scaled).max(0) / 7.5
        errors = [
            (
                (seen @ (np.clip(np.round(scaled / (scale * r)), -8, 7) * scale * r - scaled)) ** 2
            ).sum(0)
            for r in (1.0, *clips)
        ]
        chosen = np.asarray((1.0, *clips))[np.argmin(errors, axis=0)]
        # The largest weight, at 7.5 steps, is a tie that float32 may break the other way.
        assert np.mean(np.isclose(q.scale[g], scale * chosen, rtol=1e-5)) > 0.9


@pytest.mark.thorough
def test_silent_inputs_and_silent_sites_stay_finite() -> None:
    w, _, stats = _problem()
    s, q, report = awq(jnp.asarray(w), stats, Spec(weight="int4", group=8))
    assert report.alpha > 0
    assert np.isfinite(s).all()
    assert np.isfinite(codes.dequantize(q)).all()
    s, q, report = awq(jnp.asarray(w), record.empty(48), Spec(weight="int4", group=8))
    np.testing.assert_array_equal(s, 1)
    np.testing.assert_array_equal(
        q.qvalue, codes.quantize(jnp.asarray(w), Spec(weight="int4", group=8)).qvalue
    )
    assert report.relative == 0


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_dtypes_and_experts(dtype) -> None:
    w, _, stats = _problem(16, 6)
    spec = Spec(weight="int4", group=8)
    rounded = jnp.asarray(w, jnp.bfloat16)
    expected = awq(rounded.astype(jnp.float32), stats, spec, grid=5)
    with jax.enable_x64(dtype == jnp.float64):
        wide = jnp.asarray(np.asarray(rounded), dtype)
        experts = jax.tree.map(lambda a: jnp.stack([a, a]), (wide, stats))
        mapped = jax.vmap(lambda w, s: awq(w, s, spec, grid=5))(*experts)
        assert all(
            a.dtype == b.dtype
            for a, b in zip(jax.tree.leaves(mapped), jax.tree.leaves(expected), strict=True)
        )
        np.testing.assert_allclose(mapped[0][1], expected[0], rtol=1e-6)
        assert np.mean(mapped[1].qvalue[1] == expected[1].qvalue) > 0.98


def test_options_out_of_range_are_refused() -> None:
    w, _, stats = _problem(16, 6)
    spec = Spec(weight="int4")
    with pytest.raises(ValueError, match=r"grid must be at least 2.*grid=1.*write grid=20"):
        awq(jnp.asarray(w), stats, spec, grid=1)
    with pytest.raises(ValueError, match=r"between 0 and 1, got clips=\(0.9, 1.0\).*write clips="):
        awq(jnp.asarray(w), stats, spec, clips=(0.9, 1.0))
    with pytest.raises(ValueError, match=r"inputs of w.*gram of shape=\(16, 16\)"):
        awq(jnp.asarray(w[:8]), stats, spec)
