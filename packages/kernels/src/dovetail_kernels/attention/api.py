# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention, and the choice among its implementations."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dovetail_kernels.attention import blocked, cudnn, mosaic, reference, tokamax
from dovetail_kernels.attention.call import AttentionCall, Inputs, SoftmaxStats
from dovetail_kernels.attention.checks import checked_call, pair
from dovetail_kernels.dispatch import Implementation, Plan, device
from dovetail_kernels.mesh import per_shard

Ids = Int[Array | np.ndarray, "b t"]
Pair = tuple[Int[Array | np.ndarray, "b t"], Int[Array | np.ndarray, "b s"]]


def attention(
    q: Float[Array | np.ndarray, "b t n h"],
    k: Float[Array | np.ndarray, "b s k h"],
    v: Float[Array | np.ndarray, "b s k g"],
    *,
    causal: bool = False,
    window: int | None = None,
    segment_ids: Ids | Pair | None = None,
    positions: Ids | Pair | None = None,
    kv_lengths: Int[Array | np.ndarray, " b"] | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array | np.ndarray, " n"] | None = None,
    scale: float | None = None,
    stats: bool = False,
    impl: str | Sequence[str] | None = None,
) -> Any:
    """`softmax(cap(scale q kᵀ) + mask) v`, each key-value head shared by n / k query heads.

    Returns [b, t, n, g] of q's dtype; with `stats` that and `SoftmaxStats`. Logits and sums are
    float32 (float64 for float64); q, k, v are of one dtype. Gradients: of q, k, v, sinks, through
    the output and through `SoftmaxStats.lse`; `SoftmaxStats.max` has none.

    A query sees a key if all that is given holds:

    causal: position_q >= position_k.
    window: position_q - position_k < window, and without `causal` also the other way round.
    segment_ids: equal. For packed rows, positions may restart with each segment or run on.
    kv_lengths: the key's index (not its position) is below its row's length.

    Without `positions` the index in the row is the position. Where T and S differ that would be a
    guess between two conventions (the first query beside the first key, as in `jax.nn`, or the last
    beside the last, as in FlashAttention), so causal and window then need positions=(query, key).
    One array serves both sides, a pair gives each its own. Positions differ by less than 2**31.

    soft_cap: logits become `c tanh(logits / c)` (Gemma 2, 2408.00118, sec. 2), before the mask.
    sinks: one logit per head that adds to the denominator alone (gpt-oss; compare 2309.17453).
    scale: 1/√h if None.
    impl: a name, or several in order of preference; see `explain` for those of a call.

    A query that sees nothing gives 0 and gradient 0; its lse is -inf, or its sink. A key, value or
    query that is not finite makes NaN of the rows that see it. Others it does not reach, forward or
    backward, in "blocked" and "reference"; beyond kv_lengths in any implementation.

    Under an Explicit mesh, sharded batch and heads run shard by shard. Under `jax.checkpoint`, what
    "blocked" and "mosaic" need backward has the name "attn_out": a policy that saves it runs the
    forward pass once.

    Raises:
        TypeError: a dtype or an option's type is wrong.
        ValueError: shapes do not fit, an option is out of range, positions are missing, the
            sequence or head_dim is sharded, or `impl` cannot do what is asked.

    Example:

        q = k = v = jax.random.normal(jax.random.key(0), (1, 1000, 8, 64))
        segments = jnp.repeat(jnp.arange(4), 250)[None]
        out = attention(q, k, v, causal=True, segment_ids=segments)
    """
    plan = plan_attention(
        q,
        k,
        v,
        causal=causal,
        window=window,
        segment_ids=segment_ids,
        positions=positions,
        kv_lengths=kv_lengths,
        soft_cap=soft_cap,
        sinks=sinks,
        scale=scale,
        stats=stats,
        impl=impl,
    )
    chosen = plan.choose()
    q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
    arrays = (q, k, v, *_sides(segment_ids), *_sides(positions), kv_lengths, sinks)
    arrays = [None if array is None else jnp.asarray(array) for array in arrays]

    def run(*shards: Any) -> Any:
        inputs = _inputs(shards)
        return chosen.run(_local(plan.call, inputs), inputs)

    return per_shard(
        "attention",
        run,
        arrays,
        ("btnh", "bsnh", "bsng", "bt", "bs", "bt", "bs", "b", "n"),
        out=("btng", SoftmaxStats._make(("btn", "bn"))) if stats else "btng",
        may="bn",
        instead="Gather it first (jax.sharding.reshard), or use ring attention for a long one.",
    )


def plan_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: int | None = None,
    segment_ids: Any = None,
    positions: Any = None,
    kv_lengths: Any = None,
    soft_cap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    stats: bool = False,
    impl: str | Sequence[str] | None = None,
) -> Plan[AttentionCall]:
    """Which implementation `attention` would use for these arguments, which may be abstract.

    Raises what `attention` raises for arguments that are wrong in themselves.
    """
    call = checked_call(
        q,
        k,
        v,
        causal=causal,
        window=window,
        segment_ids=segment_ids,
        positions=positions,
        kv_lengths=kv_lengths,
        soft_cap=soft_cap,
        sinks=sinks,
        scale=scale,
        stats=stats,
        device=device(q, k, v),
    )
    return Plan(
        operation="attention",
        call=call,
        device=call.device,
        implementations=_implementations(call.device.platform),
        impl=impl,
    )


def _implementations(platform: str) -> list[Implementation[AttentionCall]]:
    """Best first."""
    if platform == "gpu":
        return [cudnn.CUDNN, tokamax.TOKAMAX, blocked.BLOCKED, mosaic.MOSAIC, reference.REFERENCE]
    return [blocked.BLOCKED, reference.REFERENCE, tokamax.TOKAMAX, cudnn.CUDNN, mosaic.MOSAIC]


def _sides(ids: Any) -> tuple[Any, Any]:
    return (None, None) if ids is None else pair(ids)


def _inputs(arrays: Sequence[Any]) -> Inputs:
    q, k, v, segment_q, segment_k, position_q, position_k, kv_lengths, sinks = arrays
    return Inputs(
        q=q,
        k=k,
        v=v,
        segment_ids=_alike(segment_q, segment_k),
        positions=_alike(position_q, position_k),
        kv_lengths=None if kv_lengths is None else kv_lengths.astype(jnp.int32),
        sinks=sinks,
    )


def _alike(query: Array | None, key: Array | None) -> tuple[Array, Array] | None:
    if query is None or key is None:
        return None
    # At least int32: differences of narrow positions would wrap.
    dtype = np.promote_types(np.promote_types(query.dtype, key.dtype), np.int32)
    return query.astype(dtype), key.astype(dtype)


def _local(call: AttentionCall, inputs: Inputs) -> AttentionCall:
    batch, _, heads, _ = inputs.q.shape
    return dataclasses.replace(call, batch=batch, heads=heads, kv_heads=inputs.k.shape[2])
