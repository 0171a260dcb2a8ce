# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel executed on a CPU by Pallas's interpreter, which simulates a GPU's shared memory,
barriers and copies, and reports races between them.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# JAX 0.10 imports absl here, which it does not declare.
plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")

from dovetail_kernels.attention._mosaic_kernel import KEYS, QUERIES, forward  # noqa: E402
from dovetail_kernels.attention.mosaic_masks import Masks  # noqa: E402

_interpreted = pytest.mark.skipif(
    not hasattr(plgpu, "force_gpu_interpret_mode"),
    reason="needs jax >= 0.12, whose interpreter of GPU kernels is public",
)


def _inputs(*, batch=1, queries=QUERIES, keys=2 * KEYS, heads=2, kv_heads=1, width=64, value=64):
    rng = np.random.default_rng(0)
    shapes = (batch, queries, heads, width), (batch, keys, kv_heads, width)
    shapes += ((batch, keys, kv_heads, value),)
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes)


def _causal(q, k, *, ahead, blocks, whole=0, segments=False):
    """Query i sees key j if j <= i + ahead, in the listed blocks; all in the first `whole`."""
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    i, j = (np.tile(np.arange(n, dtype=np.int32), (batch, 1)) for n in (queries, keys))
    listed = np.zeros((batch, queries // QUERIES, keys // KEYS), np.int32)
    listed[:, :, : len(blocks)] = blocks
    counts = (np.full(listed.shape[:2], n, np.int32) for n in (whole, len(blocks)))
    ids = (i // 50, j // 60) if segments else (None, None)
    return Masks(np.zeros_like(i), i + np.int32(ahead), j, listed, *counts, *ids)


def _expected(q, k, v, masks, *, scale, soft_cap=None, sinks=None):
    """out, lse, largest in float64, of what `masks` say."""
    q, k, v = (np.float64(x) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    position = masks.k_position[:, None, :]
    compared = (masks.q_low[:, :, None] <= position) & (position <= masks.q_high[:, :, None])
    if masks.q_segment is not None:
        compared &= masks.q_segment[:, :, None] == masks.k_segment[:, None, :]
    seen = np.zeros_like(compared)
    for b, i in np.ndindex(masks.some.shape):
        for n, block in enumerate(masks.blocks[b, i, : masks.some[b, i]]):
            rows = slice(i * QUERIES, (i + 1) * QUERIES)
            columns = slice(block * KEYS, (block + 1) * KEYS)
            seen[b, rows, columns] = n < masks.whole[b, i] or compared[b, rows, columns]
    s = np.einsum("btnh,bsnh->bnts", q, k) * scale
    s = s if soft_cap is None else soft_cap * np.tanh(s / soft_cap)
    weights = np.where(seen[:, None], np.exp(s), 0)
    total = weights.sum(-1) + (0 if sinks is None else np.exp(sinks)[:, None])
    out = (
        np.einsum("bnts,bsng->btng", weights, v)
        / np.where(total, total, 1).swapaxes(1, 2)[..., None]
    )
    with np.errstate(divide="ignore"):
        return out, np.log(total), np.where(seen[:, None], s, -np.inf).max(-1)


def _check(found, expected, q):
    out, lse, largest = (np.float64(x) for x in found)
    # out: weights and output are each rounded once to q's dtype, at most 2^-8 of values below 4;
    # rounding of weights averages out, so half of the sum of both is not exceeded.
    np.testing.assert_allclose(out, expected[0], rtol=0, atol=4 * float(jnp.finfo(q.dtype).eps))
    # float32 sums of 256 weights and products of width 128, by hardware exp2 of 2 ulp.
    np.testing.assert_allclose(lse, expected[1], rtol=2e-6, atol=4e-6)
    np.testing.assert_allclose(largest, expected[2], rtol=2e-6, atol=4e-6)


def _run(q, k, v, masks, *, races=False, **options):
    parameters = plgpu.InterpretGPUParams(detect_races=races)
    with plgpu.force_gpu_interpret_mode(parameters):
        return jax.jit(lambda *a: forward(*a, masks=masks, **options))(q, k, v)


@_interpreted
@pytest.mark.parametrize(
    "shape, mask, options",
    [
        # Both slots are used twice, so that each barrier is waited for in both its phases.
        pytest.param(
            {"keys": 5 * KEYS},
            {"ahead": 400, "blocks": [4, 0, 2, 3, 1], "whole": 2},
            {},
            id="blocks",
        ),
        pytest.param(
            {"batch": 2, "heads": 4, "kv_heads": 2, "value": 128},
            {"ahead": 3, "blocks": [0, 1], "segments": True},
            {"soft_cap": 2.0},
            id="segments",
        ),
        pytest.param(
            {"queries": 2 * QUERIES, "width": 128, "value": 128},
            {"ahead": -2, "blocks": [0, 1]},
            {"sinks": [0.5, -3.0]},
            id="sinks",
        ),
        pytest.param({"heads": 1, "width": 128}, {"ahead": -2, "blocks": [0, 1]}, {}, id="nothing"),
        pytest.param({"heads": 1}, {"ahead": 0, "blocks": []}, {}, id="no_blocks"),
    ],
)
def test_forward_is_the_softmax_of_what_is_seen_without_races(shape, mask, options):
    q, k, v = _inputs(**shape)
    masks = _causal(q, k, **mask)
    options = {"scale": 0.2, "soft_cap": None, "sinks": None} | options
    if options["sinks"] is not None:
        options["sinks"] = jnp.asarray(options["sinks"], jnp.float32)
    found = _run(q, k, v, masks, races=True, **options)
    _check(found, _expected(q, k, v, masks, **options), q)


@_interpreted
@pytest.mark.slow
def test_float16():
    q, k, v = (x.astype(jnp.float16) for x in _inputs(heads=1))
    masks = _causal(q, k, ahead=100, blocks=[0, 1])
    options = {"scale": 0.2, "soft_cap": None, "sinks": None}
    _check(_run(q, k, v, masks, **options), _expected(q, k, v, masks, **options), q)


@_interpreted
@pytest.mark.slow
def test_large_logits_and_caps_do_not_overflow():
    q, k, v = _inputs(heads=1)
    masks = _causal(q, k, ahead=0, blocks=[0])
    options = {"scale": 30.0, "soft_cap": None, "sinks": None}
    out, lse, _ = _run(q, k, v, masks, **options)
    assert np.isfinite(np.float32(out)).all()
    assert np.isfinite(lse).all()
    capped = {"scale": 1e4, "soft_cap": 5.0, "sinks": None}
    found = _run(q, k, v, masks, **capped)
    _check(found, _expected(q, k, v, masks, **capped), q)


def test_what_the_tensor_cores_read_is_committed_first():
    """Which the interpreter takes for granted: the weights of either loop, and the results."""
    q, k, v = _inputs()
    masks = _causal(q, k, ahead=0, blocks=[0])
    options = {"scale": 1.0, "soft_cap": None, "sinks": None}
    jaxpr = str(jax.make_jaxpr(lambda *a: forward(*a, masks=masks, **options))(q, k, v))
    assert jaxpr.count("commit_smem") == 3


@_interpreted
@pytest.mark.slow
def test_the_same_bits_again():
    q, k, v = _inputs(heads=1)
    masks = _causal(q, k, ahead=30, blocks=[0, 1])
    options = {"scale": 1 / math.sqrt(64), "soft_cap": None, "sinks": None}
    first, again = (_run(q, k, v, masks, **options) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(np.float32(a), np.float32(b))
