# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""RowStats and gradients of every shape of tile, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.loss import rows
from dovetail_kernels.loss.operands import Head, Operands, RowStats, Wanted
from dovetail_kernels.loss.tiles import Tiles

M, D, V = 13, 4, 50
ALL = Wanted(x=True, w=True, bias=True)
rng = np.random.default_rng(3)
X, W, BIAS = rng.standard_normal((M, D)), rng.standard_normal((D, V)), rng.standard_normal(V)
LABELS, READ = rng.integers(0, V, M), rng.random(M) < 0.7
BY = rng.standard_normal((4, M))
CAP, TEMPERATURE = 2.0, 0.7
# Tokens and columns, or tokens alone for tiles of the whole vocabulary.
TILES = [(13, 50), (5, 16), (4, 50), (13, 49), (1, 7), (3, 1), (13,), (5,), (1,)]


def operands():
    x = np.where(READ[:, None], X, np.nan)
    labels = np.where(READ, LABELS, 10**6)
    return Operands(
        *(jnp.asarray(a, jnp.float32) for a in (x, W, BIAS)),
        jnp.asarray(labels, jnp.int32),
        jnp.asarray(READ),
    )


def head(tiles, vocab_axis=1):
    rows, *columns = tiles
    tiles = Tiles(rows=rows, columns=V, keep=False, whole=True)
    if columns:
        tiles = Tiles(rows=rows, columns=columns[0], keep=True)
    return Head(
        vocab_axis=vocab_axis,
        soft_cap=CAP,
        temperature=TEMPERATURE,
        total=True,
        mean=True,
        tiles=tiles,
    )


@functools.cache
def oracle():
    """RowStats of the tokens that are read, and the gradients of sum(BY * stats), in float64."""
    x = np.where(READ[:, None], X, 0)
    capped = CAP * np.tanh((x @ W + BIAS) / CAP)
    z, hot = capped / TEMPERATURE, np.arange(V) == np.where(READ, LABELS, 0)[:, None]
    lse = np.log(np.exp(z).sum(1))
    p = np.exp(z - lse[:, None])
    mean = (p * z).sum(1)
    stats = np.stack([lse, (z * hot).sum(1), z.sum(1), mean])
    a, b, c, d = (BY * READ)[:, :, None]
    by_z = a * p + b * hot + c + d * p * (1 + z - mean[:, None])
    raw = by_z * (1 - (capped / CAP) ** 2) / TEMPERATURE
    return stats, z.argmax(1), (raw @ W.T, x.T @ raw, raw.sum(0))


def close(found, expected):
    """Float32 rounding of sums over at most M, D and V numbers near 1."""
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("tiles", TILES)
def test_stats_and_gradients_in_one_loop(tiles):
    def formula(stats, by):
        return sum(by[:, i] * stat for i, stat in enumerate(stats))

    by = jnp.asarray((BY * READ).T, jnp.float32)
    run = jax.jit(lambda o: rows.stats_and_gradients(head(tiles), o, formula, by, wanted=ALL))
    stats, best, gradients = run(operands())
    expected, argmax, products = oracle()
    close(jnp.stack(stats)[:, READ], expected[:, READ])
    np.testing.assert_array_equal(best[READ], argmax[READ])
    for found, product in zip(gradients, products, strict=True):
        close(found, product)


@pytest.mark.thorough
@pytest.mark.parametrize("vocab_axis, tiles", [(1, t) for t in (*TILES[:3], (5,))] + [(0, (5,))])
def test_stats_and_then_gradients(vocab_axis, tiles):
    by = RowStats(*jnp.asarray(BY, jnp.float32))
    one_head, o = head(tiles, vocab_axis), operands()
    o = o._replace(w=o.w if vocab_axis else o.w.T)

    @jax.jit
    def run(o):
        stats, best = rows.stats_of(one_head, o)
        return stats, best, rows.gradients(one_head, o, stats, by, wanted=ALL)

    stats, best, gradients = run(o)
    gradients = gradients._replace(w=gradients.w if vocab_axis else gradients.w.T)
    expected, argmax, products = oracle()
    close(jnp.stack(stats)[:, READ], expected[:, READ])
    np.testing.assert_array_equal(best[READ], argmax[READ])
    for found, product in zip(gradients, products, strict=True):
        close(found, product)
        assert found.dtype == jnp.float32


@pytest.mark.thorough
def test_the_first_of_equal_logits_in_several_tiles_is_the_best():
    """Small integers, so that equal columns have equal bits in any tile."""
    w = np.tile(np.asarray([[1, -2, 3, 0, 3], [0, 1, 2, -1, 2.0]]), (1, 10))
    x = jnp.asarray([[1.0, 1], [-1, 0], [0, 0]])
    shape = {"labels": jnp.zeros(3, jnp.int32), "read": jnp.ones(3, bool)}
    o = Operands(x=x, w=jnp.asarray(w, jnp.float32), bias=None, **shape)
    for tiles in ((3, 16), (2,)):
        _, best = rows.stats_of(head(tiles), o)
        np.testing.assert_array_equal(best, [2, 1, 0])


@pytest.mark.thorough
def test_what_is_not_read_has_no_gradient():
    by = RowStats(*jnp.asarray(BY, jnp.float32))
    stats, _ = rows.stats_of(head(TILES[1]), operands())
    found = rows.gradients(head(TILES[1]), operands(), stats, by, wanted=ALL)
    assert not np.any(found.x[~READ])
    assert np.all(np.isfinite(stats.lse))


@pytest.mark.thorough
def test_only_what_is_wanted_is_formed():
    stats, _ = rows.stats_of(head(TILES[0]), operands())
    by = RowStats(*jnp.asarray(BY, jnp.float32))
    only = Wanted(x=False, w=False, bias=True)
    found = rows.gradients(head(TILES[0]), operands(), stats, by, wanted=only)
    assert found.x is None
    assert found.w is None
    close(found.bias, oracle()[2][2])


@pytest.mark.thorough
def test_a_bias_of_minus_infinity_takes_columns_out():
    """Also a whole tile of them, first or last, and where the entropy multiplies 0 by -inf."""
    out = np.r_[0:20, 45:50]
    bias = jnp.zeros(V).at[out].set(-jnp.inf)
    labels = jnp.full(M, 30, jnp.int32)
    o = operands()._replace(
        bias=bias, labels=labels, read=jnp.ones(M, bool), x=jnp.asarray(X, "f4")
    )
    tiles = Tiles(rows=5, columns=16, keep=True)
    plain = Head(vocab_axis=1, soft_cap=None, temperature=1.0, total=False, mean=True, tiles=tiles)
    stats, best = rows.stats_of(plain, o)
    left = np.delete(X @ W, out, axis=1)
    lse = np.log(np.exp(left).sum(1))
    p = np.exp(left - lse[:, None])
    close(stats.lse, lse)
    close(stats.mean, (p * left).sum(1))
    np.testing.assert_array_equal(best, np.delete(np.arange(V), out)[left.argmax(1)])
    by = RowStats(jnp.ones(M), None, None, jnp.zeros(M))._replace(label=jnp.zeros(M))
    gradient = rows.gradients(plain, o, stats, by, wanted=ALL)
    expected = np.zeros(V)
    expected[np.delete(np.arange(V), out)] = p.sum(0)
    close(gradient.bias, expected)


def test_sums_are_in_float32_at_least():
    assert rows.accumulator(jnp.dtype("bfloat16")) == jnp.float32
    assert rows.accumulator(jnp.dtype("float32")) == jnp.float32
    assert rows.accumulator(jnp.dtype("float64")) == jnp.float64
