# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong in itself is refused by name, with its value and what to type instead."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.plan import plan_attention


@pytest.fixture(autouse=True)
def _our_own_checks(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


Q = KV = shaped(2, 6, 4, 8)
CROSS = shaped(2, 9, 4, 8)
IDS = shaped(2, 6, dtype=jnp.int32)

WRONG = {
    "rank": (shaped(6, 4, 8), KV, KV, {}, r"q \[batch, T, heads, head_dim\].*q=\(6, 4, 8\).*Add"),
    "empty": (shaped(2, 0, 4, 8), KV, KV, {}, r"at least 1.*q=\(2, 0, 4, 8\).*Skip"),
    "batch": (shaped(3, 6, 4, 8), KV, KV, {}, r"batch must be one size.*\(3, 6, 4, 8\).*Transpose"),
    "S": (Q, CROSS, KV, {}, r"S must be one size"),
    "kv_heads": (Q, KV, shaped(2, 6, 2, 8), {}, r"kv_heads must be one size"),
    "head_dim": (Q, shaped(2, 6, 4, 7), KV, {}, r"head_dim must be one size"),
    "heads": (
        Q,
        *[shaped(2, 6, 3, 8)] * 2,
        {},
        r"multiple of kv_heads.*heads=4.*kv_heads=3.*transp",
    ),
    "window": (Q, KV, KV, {"window": 0}, r"at least 1, got window=0. Use window=None"),
    "pair": (Q, KV, KV, {"window": (3, -1)}, r"own, each at least 0, got window=\(3, -1\). Use"),
    "three windows": (Q, KV, KV, {"window": (3, 1, 2)}, r"as a pair counts.*\(before, after\)"),
    "bias": (Q, KV, KV, {"bias": shaped(6, 6)}, r"\(2, 4, 6, 6\), each or 1, got shape \(6, 6\)"),
    "mask": (
        Q,
        CROSS,
        CROSS,
        {"mask": shaped(1, 1, 6, 6, dtype=bool)},
        r"mask must be.*\(2, 4, 6, 9\).*\(1, 1, 6, 6\). Give it four axes",
    ),
    "soft_cap": (
        Q,
        KV,
        KV,
        {"soft_cap": -1.0},
        r"soft_cap positive, got soft_cap=-1.0. Use soft_cap=",
    ),
    "scale": (Q, KV, KV, {"scale": float("nan")}, r"must be finite.*scale=nan. Use scale=None"),
    "three sides": (Q, KV, KV, {"segment_ids": (IDS,) * 3}, r"pair \(query, key\).*of 3. Use segm"),
    "one of two": (
        Q,
        CROSS,
        CROSS,
        {"positions": IDS},
        r"T=6 and S=9. Use positions=\(query, key\)",
    ),
    "ids": (
        Q,
        KV,
        KV,
        {"positions": shaped(1, 6, dtype=jnp.int32)},
        r"query side.*\(2, 6\).*\(1, 6\).*broad",
    ),
    "key ids": (
        Q,
        CROSS,
        CROSS,
        {"segment_ids": (IDS, IDS)},
        r"key side must be.*\(2, 9\), got shape",
    ),
    "lengths": (
        Q,
        KV,
        KV,
        {"kv_lengths": shaped(1, dtype=jnp.int32)},
        r"= \(2,\), got shape \(1,\).*jnp.full",
    ),
    "sinks": (
        Q,
        KV,
        KV,
        {"sinks": shaped(2)},
        r"one logit per query head, got shape \(2,\).*jnp.full",
    ),
    "causal": (Q, CROSS, CROSS, {"causal": True}, r"T=6, S=9 and positions=None. Pass positions="),
    "window of two": (Q, CROSS, CROSS, {"window": 3}, r"window=3 need.*T=6, S=9"),
}

WRONG_TYPE = {
    "integers": (*[shaped(2, 6, 4, 8, dtype=jnp.int32)] * 3, {}, r"floating point.*int32.*astype"),
    "mixed": (Q, KV, shaped(2, 6, 4, 8, dtype=jnp.bfloat16), {}, r"one dtype.*v=bfloat16.*astype"),
    "causal": (Q, KV, KV, {"causal": 1}, r"causal must be a Python bool, got causal=1. Use True"),
    "window": (Q, KV, KV, {"window": 2.0}, r"Python int, got window=2.0. Mark it static"),
    "windows": (Q, KV, KV, {"window": (2, 1.5)}, r"pair.*got window=\(2, 1.5\). Mark it static"),
    "mask": (Q, KV, KV, {"mask": shaped(1, 1, 1, 6)}, r"bool, got dtype=float32. Use mask != 0"),
    "bias": (
        Q,
        KV,
        KV,
        {"bias": shaped(1, 1, 1, 6, dtype=bool)},
        r"floating, got dtype=bool. Use bias .astype.*mask=True shows",
    ),
    "no array": (Q, KV, KV, {"mask": True}, r"needs mask as an array.*bool. Use jnp.asarray"),
    "scale": (Q, KV, KV, {"scale": "1"}, r"Python number, got scale='1'. Mark it static"),
    "unsigned": (
        Q,
        KV,
        KV,
        {"positions": shaped(2, 6, dtype=jnp.uint32)},
        r"signed.*uint32.*astype",
    ),
    "lengths": (
        Q,
        KV,
        KV,
        {"kv_lengths": shaped(2)},
        r"signed integers, got dtype=float32.*astype",
    ),
    "sinks": (Q, KV, KV, {"sinks": shaped(4, dtype=jnp.int32)}, r"sinks.*got dtype=int32.*astype"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_value(name):
    q, k, v, options, message = WRONG[name]
    with pytest.raises(ValueError, match=r"(?s)" + message):
        plan_attention(q, k, v, **options)


@pytest.mark.parametrize("name", WRONG_TYPE)
def test_wrong_type(name):
    q, k, v, options, message = WRONG_TYPE[name]
    with pytest.raises(TypeError, match=r"(?s)" + message):
        plan_attention(q, k, v, **options)


@pytest.mark.parametrize("lengths", [[0, 7], [-1, 3]])
def test_lengths_beyond_the_keys_where_their_values_are_known(lengths):
    lengths = np.array(lengths, np.int32)
    low, high = lengths.min(), lengths.max()
    with pytest.raises(ValueError, match=rf"in 0..S, got {low}..{high} with S=6. Pass the keys"):
        plan_attention(Q, KV, KV, kv_lengths=lengths)
    with pytest.raises(ValueError, match=rf"got {low}..{high}"):
        plan_attention(Q, KV, KV, kv_lengths=jnp.asarray(lengths))
    jax.eval_shape(lambda x: plan_attention(Q, KV, KV, kv_lengths=x) and x, jnp.asarray(lengths))


def test_a_traced_scale_is_told_to_be_static():
    q = jnp.ones((1, 2, 1, 4))
    with pytest.raises(TypeError, match=r"Python number, got scale=.*use scale=1.0"):
        jax.jit(lambda q, scale: attention(q, q, q, scale=scale))(q, 0.5)


def test_the_facts_of_a_call():
    call = plan_attention(Q, CROSS, shaped(2, 9, 4, 5), kv_lengths=shaped(2, dtype=jnp.int32)).call
    assert (call.batch, call.queries, call.keys, call.heads, call.kv_heads) == (2, 6, 9, 4, 4)
    assert (call.head_dim, call.value_dim) == (8, 5)
    assert call.scale == pytest.approx(8**-0.5, rel=1e-15)
    assert (call.kv_lengths, call.segments, call.positions, call.sinks) == (
        True,
        False,
        False,
        False,
    )
    assert plan_attention(Q, KV, KV, scale=2, soft_cap=3).call.scale == 2.0


def test_windows_are_distances_to_keys_before_and_after():
    def window(window, **options):
        return plan_attention(Q, KV, KV, window=window, **options).call.window

    assert window(3) == (2, 2)
    assert window(3, causal=True) == window((2, 5), causal=True) == (2, 0)
    assert window((2, 5)) == window([np.int64(2), 5]) == (2, 5)
    assert window((2**40, 2**31)) == (2**31 - 1, 2**31 - 1)


def test_the_shapes_of_mask_and_bias():
    call = plan_attention(
        Q, KV, KV, mask=shaped(2, 1, 1, 6, dtype=bool), bias=shaped(1, 4, 6, 6, dtype=jnp.bfloat16)
    ).call
    assert (call.mask, call.bias) == ((2, 1, 1, 6), (1, 4, 6, 6))
    # A byte for each of 12 pairs, four for each of 144.
    assert call.pairwise_bytes == 12 + 4 * 144
    assert call.masked
