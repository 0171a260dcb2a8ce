# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models import attention, dense_kv, llama

CONFIG = llama(vocab_size=9, embed=12, depth=2, heads=6, kv_heads=2, mlp=5, head_dim=4)
DEFAULTS = {
    "causal": True,
    "positions": None,
    "segment_ids": None,
    "window": None,
    "soft_cap": None,
    "scale": 0.37,
    "sinks": None,
}


def qkv(rows=2, length=11, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((6, 5), (2, 5), (2, 3))  # Heads share keys three to one; values are narrower.
    return [rng.standard_normal((rows, length, *shape)).astype(np.float32) for shape in shapes]


def formula(q, k, v, *, causal, positions, segment_ids, window, soft_cap, scale, sinks):
    """Attention one query at a time, float64."""
    rows, length = q.shape[:2]
    positions = np.arange(length)[None].repeat(rows, 0) if positions is None else positions
    segments = np.ones((rows, length)) if segment_ids is None else segment_ids
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, t, n in np.ndindex(*q.shape[:3]):
        ahead = positions[b, t] - positions[b]
        seen = segments[b] == segments[b, t]
        seen &= (ahead >= 0) | (not causal)
        seen &= abs(ahead) < (window or math.inf)
        score = scale * k[b, seen, n // 3].astype(np.float64) @ q[b, t, n]
        score = score if soft_cap is None else soft_cap * np.tanh(score / soft_cap)
        rest = 0.0 if sinks is None else math.exp(sinks[n])
        weight = np.exp(score)
        out[b, t, n] = weight / (weight.sum() + rest) @ v[b, seen, n // 3]
    return out


SEGMENTS = np.array([[1] * 4 + [2] * 6 + [0], [1] * 11], np.int32)
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0], range(11)], np.int32)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"segment_ids": SEGMENTS},
        {"segment_ids": SEGMENTS, "positions": POSITIONS, "window": 3},
        {"causal": False, "window": 4},
        {"soft_cap": 0.8},
        {"sinks": np.array([0.3, -1.0, 2.0, 0.0, 1.5, -0.2], np.float32)},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_attention_is_the_formula(options):
    arguments = DEFAULTS | options
    arrays = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    q, k, v = qkv()
    got = attention(*map(jnp.asarray, (q, k, v)), **arrays)
    # Weights sum to one and values are about 1: a dozen float32 roundings.
    np.testing.assert_allclose(got, formula(q, k, v, **arguments), rtol=0, atol=2e-6)


@pytest.mark.thorough
def test_bfloat16_keeps_its_dtype_and_sums_in_float32():
    q, k, v = (jnp.asarray(x).astype(jnp.bfloat16) for x in qkv())
    got = attention(q, k, v, **DEFAULTS)
    assert got.dtype == jnp.bfloat16
    wide = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    # One bfloat16 rounding of the weights, one of the result: 2^-8 each.
    np.testing.assert_allclose(got.astype(np.float32), formula(*wide, **DEFAULTS), atol=0.02)


@pytest.mark.thorough
def test_a_cache_holds_each_row_at_its_own_positions():
    q, k, v = map(jnp.asarray, qkv(rows=2, length=4))
    entry = (jnp.full((2, 7, 2, 5), 9.0), jnp.full((2, 7, 2, 3), 9.0))
    positions = jnp.array([[0, 1, 2, 3], [3, 4, 5, 6]], jnp.int32)
    real = jnp.array([[1, 1, 0, 0], [1, 1, 1, 1]], jnp.int32)
    options = DEFAULTS | {"positions": positions, "segment_ids": real}
    _, (keys, values) = attention(q, k, v, kv=entry, **options)
    want = np.full((2, 7, 2, 5), 9.0, np.float32)
    want[0, :2], want[1, 3:7] = k[0, :2], k[1]
    np.testing.assert_array_equal(keys, want)
    np.testing.assert_array_equal(values[1, 3:7], v[1])
    np.testing.assert_array_equal(values[0, 2:], 9.0)


@pytest.mark.thorough
def test_a_negative_position_is_not_written():
    q, k, v = map(jnp.asarray, qkv(rows=1, length=2))
    entry = (jnp.zeros((1, 3, 2, 5)), jnp.zeros((1, 3, 2, 3)))
    options = DEFAULTS | {"positions": jnp.array([[-1, 0]], jnp.int32)}
    _, (keys, _) = attention(q, k, v, kv=entry, **options)
    np.testing.assert_array_equal(keys[0, 0], k[0, 1])
    np.testing.assert_array_equal(keys[0, 1:], 0.0)


def test_dense_kv_has_an_entry_per_layer():
    kv = dense_kv(CONFIG, rows=3, length=8, dtype=jnp.bfloat16)
    assert len(kv) == 2
    for entry in kv:
        assert [x.shape for x in entry] == [(3, 8, 2, 4)] * 2
        assert [x.dtype for x in entry] == [jnp.bfloat16] * 2


def test_a_donated_cache_is_updated_in_place():
    q, k, v = map(jnp.asarray, qkv(rows=2, length=1))
    entry = (jnp.zeros((2, 64, 2, 5)), jnp.zeros((2, 64, 2, 3)))
    where = entry[0].unsafe_buffer_pointer()
    positions = jnp.array([[5], [9]], jnp.int32)
    call = jax.jit(
        lambda q, k, v, kv: attention(q, k, v, kv=kv, **DEFAULTS | {"positions": positions}),
        donate_argnums=3,
    )
    _, (keys, _) = call(q, k, v, entry)
    assert entry[0].is_deleted()
    assert keys.unsafe_buffer_pointer() == where


def test_a_position_beyond_the_cache_is_refused():
    q, k, v = map(jnp.asarray, qkv(rows=1, length=4))
    entry = (jnp.zeros((1, 3, 2, 5)), jnp.zeros((1, 3, 2, 3)))
    with pytest.raises(ValueError, match="must lie in the cache") as error:
        attention(q, k, v, kv=entry, **DEFAULTS)
    assert "position=3 with length=3" in str(error.value)
    assert "Make it larger: dense_kv(config" in str(error.value)


def test_a_cache_is_causal():
    q, k, v = map(jnp.asarray, qkv(rows=1, length=1))
    entry = (jnp.zeros((1, 3, 2, 5)), jnp.zeros((1, 3, 2, 3)))
    with pytest.raises(ValueError, match="needs causal=True, got causal=False"):
        attention(q, k, v, kv=entry, **DEFAULTS | {"causal": False})
