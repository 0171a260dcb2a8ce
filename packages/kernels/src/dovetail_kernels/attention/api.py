# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention, and the choice among its implementations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dovetail_kernels.argument_names import operation
from dovetail_kernels.attention.call import AttentionCall, Inputs, local
from dovetail_kernels.attention.plan import pair, plan_attention
from dovetail_kernels.attention.stats import SoftmaxStats
from dovetail_kernels.dispatch import Impl, Implementation, run
from dovetail_kernels.mesh import per_shard

Ids = Int[Array | np.ndarray, "b t"]
Window = int | tuple[int, int]
Pair = tuple[Int[Array | np.ndarray, "b t"], Int[Array | np.ndarray, "b s"]]


@operation
def attention(
    q: Float[Array | np.ndarray, "b t n h"],
    k: Float[Array | np.ndarray, "b s k h"],
    v: Float[Array | np.ndarray, "b s k g"],
    *,
    causal: bool = False,
    window: Window | None = None,
    segment_ids: Ids | Pair | None = None,
    positions: Ids | Pair | None = None,
    kv_lengths: Int[Array | np.ndarray, " b"] | None = None,
    mask: Bool[Array | np.ndarray, "#b #n #t #s"] | None = None,
    bias: Float[Array | np.ndarray, "#b #n #t #s"] | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array | np.ndarray, " n"] | None = None,
    scale: float | None = None,
    stats: bool = False,
    impl: Impl | None = None,
) -> Any:
    """Scaled dot-product attention: `softmax(cap(scale q kᵀ + bias) + mask) v`.

    A query sees a key only if every given condition holds: `causal`, `window`, `segment_ids`,
    `kv_lengths` and `mask` are combined with "and". Grouped-query attention: n / k query heads
    share one key-value head. A query without any visible key returns 0 with gradient 0; its lse is
    -inf, or its sink.

    Args:
        q: Queries [b, t, n, h]. b, t and s may be symbolic
            (`jax.export.symbolic_shape`); with t or s, "reference" runs.
        k: Keys [b, s, k, h], of q's dtype.
        v: Values [b, s, k, g], of q's dtype.
        causal: Requires position_q >= position_k.
        window: Requires position_q - position_k < window; without `causal`, in both directions. A
            pair counts the keys before and after the query's own, as `local_window_size` of
            `jax.nn`: -after <= position_q - position_k <= before. With `causal`, after is 0.
        segment_ids: Requires equal ids, for packed rows; positions may restart with each segment or
            run on. One array [b, t] for both sides, or a pair (query [b, t], key [b, s]).
        positions: Positions for `causal` and `window`; one array or a pair. They differ by less
            than 2**31. Default: the index in the row. `causal` and `window` need them as a pair if
            t != s, because libraries disagree there (`jax.nn` aligns the first query with the first
            key, FlashAttention the last with the last).
        kv_lengths: Number of valid keys per row, [b]. Counts indices, not positions.
        mask: Requires True, bool [b or 1, n or 1, t or 1, s or 1].
        bias: Added to the scaled logits before `soft_cap`, as in Tokamax. Floating point, of the
            shapes of `mask`. -inf gives a key no weight but does not hide it: use `mask`.
        soft_cap: Maps logits to `c tanh(logits / c)` before the mask (Gemma 2, 2408.00118, sec. 2).
        sinks: One logit per head, [n], added to the denominator only (gpt-oss; compare 2309.17453).
        scale: Factor of the logits. Default 1/√h.
        stats: Also return `SoftmaxStats` (log-sum-exp and maximum).
        impl: An implementation, by name or as `implementations.Implementation`, or several in order
            of preference. `explain` lists them for a call.

    Returns:
        Output [b, t, n, g] in q's dtype; with `stats` the pair (output, `SoftmaxStats`). Logits and
        sums are float32 (float64 for float64). Differentiable in q, k, v, sinks and bias, through
        the output and through `SoftmaxStats.lse`; `SoftmaxStats.max` has no gradient. Forward
        mode (`jax.jvp`, `jax.jacfwd`) and second derivatives need `impl="reference"`.

    Raises:
        TypeError: A dtype or the type of an option is wrong.
        ValueError: Shapes do not fit, an option is out of range, positions are missing, the
            sequence (also of mask or bias) or head_dim is sharded, or `impl` cannot do the call.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import attention
        >>> q = k = jnp.zeros((1, 4, 1, 8))
        >>> v = jnp.arange(4.0).reshape(1, 4, 1, 1)
        >>> attention(q, k, v, causal=True)[0, :, 0, 0]
        Array([0. , 0.5, 1. , 1.5], dtype=float32)
        >>> attention(q, k, v, causal=True, segment_ids=jnp.array([[0, 0, 1, 1]]))[0, :, 0, 0]
        Array([0. , 0.5, 2. , 2.5], dtype=float32)

    Note:
        Mask and bias are read by blocks: an axis of size 1 is never repeated in memory, and the
        gradient of a bias has its shape and dtype. Blocks that the mask hides from all heads are
        skipped.

        A non-finite query, key or value makes the rows that see it NaN. In "blocked" and
        "reference" it reaches no other row, forward or backward; beyond `kv_lengths` it reaches
        none in any implementation.

        Under an Explicit mesh, sharded batch and heads run shard by shard. Under `jax.checkpoint`,
        the residuals of "blocked", "mosaic" and "cudnn_packed" have the name "attn_out". A policy
        with this name avoids a second forward pass.
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
        mask=mask,
        bias=bias,
        soft_cap=soft_cap,
        sinks=sinks,
        scale=scale,
        stats=stats,
        impl=impl,
    )
    implementation = plan.choose()
    q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
    arrays = (q, k, v, *_sides(segment_ids), *_sides(positions), kv_lengths, sinks, bias, mask)
    arrays = [None if array is None else jnp.asarray(array) for array in arrays]

    return per_shard(
        "attention",
        functools.partial(_run, implementation, plan.call),
        arrays,
        ("btnh", "bsnh", "bsng", "bt", "bs", "bt", "bs", "b", "n", "bnts", "bnts"),
        out=("btng", SoftmaxStats._make(("btn", "bn"))) if stats else "btng",
        may="bn",
        instead="Gather it first (jax.sharding.reshard), or use ring attention for a long one.",
    )


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)  # eager calls compile once
def _run(implementation: Implementation[AttentionCall], call: AttentionCall, *shards: Any) -> Any:
    inputs = _inputs(shards)
    return run("attention", implementation, local(call, inputs), inputs)


def _sides(ids: Any) -> tuple[Any, Any]:
    return (None, None) if ids is None else pair(ids)


def _inputs(arrays: Sequence[Any]) -> Inputs:
    q, k, v, segment_q, segment_k, position_q, position_k, *others = arrays
    kv_lengths, sinks, bias, mask = others
    return Inputs(
        q=q,
        k=k,
        v=v,
        segment_ids=_alike(segment_q, segment_k),
        positions=_alike(position_q, position_k),
        kv_lengths=None if kv_lengths is None else kv_lengths.astype(jnp.int32),
        sinks=sinks,
        bias=bias,
        mask=mask,
    )


def _alike(query: Array | None, key: Array | None) -> tuple[Array, Array] | None:
    if query is None or key is None:
        return None
    # At least int32: differences of narrow positions would wrap.
    dtype = np.promote_types(np.promote_types(query.dtype, key.dtype), np.int32)
    return query.astype(dtype), key.astype(dtype)
