# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""GPTQ against Algorithm 1 of the paper, an input at a time in NumPy float64; and its promises."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import qwix
from hypothesis import given, settings
from hypothesis import strategies as st
from qwix.contrib import gptq_core

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods.gptq import _check_options, _gptq, gptq

_TOP = {"int4": 7.5, "int8": 127.5, "nf4": 1.0, "fp8": 448.0}
_INTEGERS = {"int4": (-8, 7), "int8": (-128, 127)}
_NF4 = np.asarray(
    qwix.dequantize(qwix.QArray(jnp.arange(16, dtype=jnp.uint4), jnp.ones(1), None, "nf4")),
    np.float64,
)


@pytest.fixture(autouse=True)
def _strict_dtypes():
    with jax.numpy_dtype_promotion("strict"):
        yield


def _problem(inputs, outputs, *, rows=200, seed=0, dead=True):
    """w[K, N] and inputs that are correlated, one ten times the others, one always 0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, inputs)) @ (
        rng.normal(size=(inputs, inputs)) * 0.9 ** np.arange(inputs)[:, None] + 0.1 * np.eye(inputs)
    )
    x[:, inputs // 3] *= 10
    if dead:
        x[:, inputs // 2] = 0
    w = rng.normal(size=(inputs, outputs)) * rng.lognormal(0, 0.5, size=outputs)
    return jnp.asarray(w, jnp.float32), jnp.asarray(x.T @ x, jnp.float32)


def _grid(w, spec):
    """Scale and zero of the groups stacked along w's rows, as one group: [N], [N]."""
    if spec.symmetric:
        return np.abs(w).max(0) / _TOP[spec.weight], np.zeros(w.shape[1])
    low, high = _INTEGERS[spec.weight]
    least = w.min(0)
    scale = (w.max(0) - least) / (high - low)
    return scale, np.round(low - least / scale)


def _levels(steps, spec):
    """The level, in steps of the scale, that is nearest."""
    if spec.weight == "nf4":
        return _NF4[np.argmin(np.abs(steps[:, None] - _NF4), axis=1)]
    if spec.weight == "fp8":
        return np.clip(steps, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return np.clip(np.round(steps), *_INTEGERS[spec.weight])


def _textbook(w, gram, spec, order, damp=0.01):
    """The dequantized weight, and which outputs met a tie that float32 may break otherwise."""
    w, h = np.array(w, np.float64), np.array(gram, np.float64)
    mean = np.diag(h).mean()
    dead = np.diag(h) == 0
    h[dead, dead], w[dead] = mean, 0
    places = np.arange(len(w))
    if order == "activation":
        places = np.argsort(-np.where(dead, 0, np.diag(h)), kind="stable")
    u = np.linalg.cholesky(np.linalg.inv((h + damp * mean * np.eye(len(w)))[places][:, places])).T
    size = spec.group or len(w)
    grids = [_grid(w[i : i + size], spec) for i in range(0, len(w), size)]
    free, q, tied = w[places], np.zeros_like(w), np.zeros(w.shape[1], bool)
    for i, place in enumerate(places):
        if order == "natural" and i % size == 0:
            grids[i // size] = _grid(free[i : i + size], spec)
        scale, zero = grids[place // size]
        steps = free[i] / scale + zero
        near = 1e-5 * _TOP[spec.weight]
        tied |= _levels(steps - near, spec) != _levels(steps + near, spec)
        q[place] = (_levels(steps, spec) - zero) * scale
        free[i:] -= np.outer(u[i, i:], (free[i] - q[place]) / u[i, i])
    return q, tied


def _error(q, w, gram):
    dw = np.asarray(q, np.float64) - np.asarray(w, np.float64)
    return np.einsum("in,ij,jn->n", dw, np.asarray(gram, np.float64), dw)


@pytest.mark.capability("GPTQ")
@pytest.mark.parametrize(
    "spec, order",
    [
        (Spec(weight="int4"), "activation"),
        (Spec(weight="int4"), "natural"),
        (Spec(weight="int4", group=12), "activation"),
        (Spec(weight="int4", group=20, symmetric=False), "activation"),
        (Spec(weight="int4", group=20, symmetric=False), "natural"),
        (Spec(weight="int8", group=30), "natural"),
        (Spec(weight="nf4", group=12), "natural"),
        (Spec(weight="fp8"), "activation"),
    ],
    ids=str,
)
def test_it_is_the_algorithm_of_the_paper(spec, order) -> None:
    """Codes are equal but where a weight stands between two: of float32 and float64 each may take
    another, and all that the output rounds later follows. (A group's largest weight is such a
    place, if it is rounded first: it is 7.5 steps by construction.) Outputs that met no tie are
    equal in every code; the others end a few parts in a hundred better or worse."""
    w, gram = _problem(60, 24)
    q, report = gptq(w, gram, spec, order=order, block=16)
    expected, tied = _textbook(w, gram, spec, order)
    got = np.asarray(codes.dequantize(q), np.float64)
    if spec.weight != "fp8":  # whose levels near 0 are closer than float32 is exact at 448
        assert tied.mean() < 0.5
        worth = np.abs(expected).max(0)
        differ = np.abs(got - expected)[:, ~tied] > 1e-4 * worth[~tied]
        assert not differ.any()
    assert report.kept == 0
    ours, theirs = _error(got, w, gram), _error(expected, w, gram)
    np.testing.assert_allclose(ours.sum(), theirs.sum(), rtol=0.03)
    if not tied.all():
        np.testing.assert_allclose(ours[~tied].sum(), theirs[~tied].sum(), rtol=0.01)
    # float32 sums of 60 products, against the largest of which the error is about 1 in 30.
    np.testing.assert_allclose(report.error, ours.sum(), rtol=1e-3)


@pytest.mark.slow
def test_it_is_the_algorithm_of_qwix() -> None:
    """Qwix rounds inputs in their own order, on weights [N, K], and no input is dead."""
    w, gram = _problem(16, 24, seed=1, dead=False)
    how = gptq_core.qarray.HowToQuantize(qtype=jnp.int4, channelwise_axes=(0,), tiled_axes={1: 8})
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs, _ = gptq_core.quantize_weight(w.T, gram, how, blocksize=8)
    ours, _ = gptq(w, gram, Spec(weight="int4", group=8), order="natural")
    # A tie broken otherwise changes what is rounded after it, of that output.
    same = np.all(np.asarray(ours.qvalue) == np.asarray(theirs.qvalue).T, axis=0)
    assert same.mean() > 0.7
    np.testing.assert_allclose(ours.scale[:, same], theirs.scale.T[:, same], rtol=1e-4)


@pytest.mark.thorough
def test_the_codes_are_ordinary_and_dead_inputs_weigh_nothing() -> None:
    spec = Spec(weight="int4", group=10, symmetric=False)
    w, gram = _problem(40, 9)
    for order in ("activation", "natural"):
        q, _ = gptq(w, gram, spec, order=order)
        like = codes.quantize(w, spec)
        assert jax.tree.structure(q) == jax.tree.structure(like)
        for a, b in zip(jax.tree.leaves(q), jax.tree.leaves(like), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert not np.any(codes.dequantize(q)[20])


@pytest.mark.thorough
def test_the_block_changes_no_result_but_for_rounding() -> None:
    w, gram = _problem(60, 24, seed=4)
    spec = Spec(weight="int8", group=30)
    errors = [gptq(w, gram, spec, block=b)[1].error for b in (7, 128)]
    # An output whose code falls the other way ends one part in a thousand better or worse.
    np.testing.assert_allclose(errors[0], errors[1], rtol=5e-3)


@pytest.mark.thorough
def test_correlated_inputs_gain_most() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(600, 6)) @ rng.normal(size=(6, 128)) + 0.05 * rng.normal(size=(600, 128))
    w, gram = rng.normal(size=(128, 20)), x.T @ x
    q, report = gptq(
        jnp.asarray(w, jnp.float32),
        jnp.asarray(gram, jnp.float32),
        Spec(weight="int4", group=64),
    )
    nearest = np.sqrt(report.nearest / report.signal)
    assert 0.08 < nearest < 0.2
    assert report.relative < nearest / 5
    relative = np.linalg.norm(x @ (np.asarray(codes.dequantize(q)) - w)) / np.linalg.norm(x @ w)
    np.testing.assert_allclose(report.relative, relative, rtol=1e-2)


_SPECS = st.sampled_from([Spec(weight="int4", group=4, symmetric=False), Spec(weight="nf4")])


@pytest.mark.thorough
@pytest.mark.capability("GPTQ")
@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    spec=_SPECS,
    order=st.sampled_from(["activation", "natural"]),
    rows=st.integers(1, 40),
    power=st.sampled_from([-18, 0, 12]),
    damp=st.sampled_from([0.0, 0.01, 1.0]),
    seed=st.integers(0, 99),
)
def test_no_output_is_worse_than_rounded_to_nearest(spec, order, rows, power, damp, seed) -> None:
    w, gram = _problem(16, 6, rows=rows, seed=seed, dead=seed % 2 == 0)
    gram = gram * 10.0**power
    q, report = gptq(w, gram, spec, order=order, damp=damp, block=5)
    ours = _error(codes.dequantize(q), w, gram)
    nearest = _error(codes.dequantize(codes.quantize(w, spec)), w, gram)
    # Compared in float32, where a sum of 16 x 16 products is exact to about 1e-5 of the largest.
    slack = 1e-5 * np.trace(gram) * np.abs(np.asarray(codes.dequantize(q) - w)).max() ** 2
    assert (ours <= nearest + slack).all()
    assert report.error <= report.nearest


@pytest.mark.thorough
def test_outputs_that_gain_nothing_are_returned_as_nearest() -> None:
    """Of uncorrelated inputs no error can be made up for; of a gram of zeros, nothing is known."""
    w, _ = _problem(24, 5)
    spec = Spec(weight="int4", group=8)
    nearest = codes.quantize(w, spec)
    nothing = jnp.zeros((24, 24))
    _, report = gptq(w, jnp.diag(jnp.arange(1.0, 25.0)), spec)
    np.testing.assert_allclose(report.error, report.nearest, rtol=1e-6)
    for gram in (nothing, -jnp.eye(24), nothing * jnp.nan):
        q, report = gptq(w, gram, spec)
        assert report.kept == 5
        np.testing.assert_array_equal(q.qvalue, nearest.qvalue)
        np.testing.assert_array_equal(q.scale, nearest.scale)


@pytest.mark.thorough
def test_damping_is_raised_until_it_factors_and_reported() -> None:
    w, gram = _problem(24, 5, rows=6, dead=False)
    mean = jnp.diagonal(gram).mean()
    short = gram - 0.03 * mean * jnp.eye(24)  # eigenvalues down to -0.03 of the mean
    for damp, used in ((0.01, 0.1), (0.5, 0.5), (0.0, 0.1)):
        q, report = gptq(w, short, Spec(weight="int4"), damp=damp)
        np.testing.assert_allclose(report.damp, used, rtol=1e-5)
        assert report.kept < 5
        assert np.isfinite(codes.dequantize(q)).all()
    _, report = gptq(w, gram, Spec(weight="int4"))
    np.testing.assert_allclose(report.damp, 0.01, rtol=1e-6)


@pytest.mark.slow
def test_stacked_weights_are_mapped_each_with_its_own_damping() -> None:
    problems = [_problem(24, 10, seed=s, rows=r) for s, r in ((0, 90), (1, 4), (2, 40))]
    w, gram = (jnp.stack(part) for part in zip(*problems, strict=True))
    gram = gram.at[1].add(-0.03 * jnp.diagonal(gram[1]).mean() * jnp.eye(24))
    spec = Spec(weight="int4", group=8)

    def one(w, gram):
        return gptq(w, gram, spec)

    loop = jax.lax.map(lambda p: one(*p), (w, gram))
    for q, report in (jax.vmap(one)(w, gram), loop):
        assert report.damp[1] > report.damp[0]
        assert report.relative.shape == (3,)
        for i in range(3):
            alone, expected = one(w[i], gram[i])
            # Not all: products in another order of summation break ties otherwise.
            assert np.mean(q.qvalue[i] == alone.qvalue) > 0.9
            np.testing.assert_allclose(report.error[i], expected.error, rtol=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_other_dtypes_are_computed_in_float32(dtype) -> None:
    w, gram = _problem(24, 5)
    expected, _ = gptq(w.astype(jnp.bfloat16).astype(jnp.float32), gram, Spec(weight="int4"))
    with jax.enable_x64(dtype == jnp.float64):
        wide = jnp.asarray(np.asarray(w.astype(jnp.bfloat16)), dtype)
        grams = jnp.asarray(np.asarray(gram), jnp.float32 if dtype == jnp.bfloat16 else dtype)
        q, report = gptq(wide, grams, Spec(weight="int4"))
        assert q.scale.dtype == jnp.float32
        assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in report)
        np.testing.assert_array_equal(q.qvalue, expected.qvalue)


def _lowered(inputs, outputs, order):
    arrays = jnp.zeros((inputs, outputs)), jnp.zeros((inputs, inputs))
    spec = Spec(weight="int4", group=16)
    return _gptq.lower(*arrays, spec, damp=jnp.float32(0.01), order=order, block=32)


@pytest.mark.parametrize("order", ["activation", "natural"])
def test_the_program_does_not_grow_with_the_inputs(order) -> None:
    sizes = [len(_lowered(k, 32, order).as_text().splitlines()) for k in (64, 256)]
    assert sizes[0] == sizes[1]


@pytest.mark.thorough
@pytest.mark.parametrize("inputs, outputs", [(512, 64), (64, 512)])
def test_memory_is_the_factor_and_few_copies_of_the_weight(inputs, outputs) -> None:
    compiled = _lowered(inputs, outputs, "activation").compile()
    temp = compiled.memory_analysis().temp_size_in_bytes
    assert temp < 4 * (2.4 * inputs**2 + 5 * inputs * outputs + 2**12)


def test_options_out_of_range_are_refused() -> None:
    w, gram = _problem(24, 5)
    with pytest.raises(ValueError, match=r"damp must be in \[0, 1000\].*damp=-1.*write damp=0.01"):
        gptq(w, gram, Spec(weight="int4"), damp=-1.0)
    with pytest.raises(ValueError, match=r"damp=2000.0"):
        gptq(w, gram, Spec(weight="int4"), damp=2000.0)
    with pytest.raises(ValueError, match=r"block must be at least 1.*block=0.*write block=128"):
        gptq(w, gram, Spec(weight="int4"), block=0)
    # Below the types, which the tests check.
    with pytest.raises(ValueError, match=r"order must be .*order='act'.*write order='activation'"):
        _check_options(0.01, "act", 128)
    with pytest.raises(ValueError, match=r"group=7, K=24"):
        gptq(w, gram, Spec(weight="int4", group=7))
