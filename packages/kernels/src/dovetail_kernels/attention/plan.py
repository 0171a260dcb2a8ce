# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The plan of a call of attention: checks of its arguments, its facts and its implementations."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from dovetail_kernels.arrays import check_arrays, known
from dovetail_kernels.attention import blocked, mosaic, reference, tokamax
from dovetail_kernels.attention.call import AttentionCall
from dovetail_kernels.attention.cudnn.dense import CUDNN
from dovetail_kernels.attention.cudnn.packed import CUDNN_PACKED
from dovetail_kernels.dispatch import Impl, Implementation, Plan, device
from dovetail_kernels.mesh import is_whole

_AXES = "q [batch, T, heads, head_dim], k [batch, S, kv_heads, head_dim], v [batch, S, kv_heads, g]"


def plan_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    segment_ids: Any = None,
    positions: Any = None,
    kv_lengths: Any = None,
    mask: Any = None,
    bias: Any = None,
    soft_cap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    stats: bool = False,
    impl: Impl | None = None,
) -> Plan[AttentionCall]:
    """Returns the plan of `attention` for these arguments. Nothing runs.

    Args:
        q, k, v: Queries, keys and values. All arrays may be abstract.
        causal, window, segment_ids, positions, kv_lengths, mask: Visibility, as in `attention`.
        bias, soft_cap, sinks, scale, stats, impl: Options, as in `attention`.

    Raises:
        TypeError: A dtype or the type of an option is wrong.
        ValueError: Shapes do not fit, an option is out of range, or positions are missing.
    """
    _check_qkv(q, k, v)
    (batch, queries, heads, head_dim), keys = q.shape, k.shape[1]
    _check_options(causal=causal, soft_cap=soft_cap, scale=scale, stats=stats)
    _check_window(window)
    _check_ids("segment_ids", segment_ids, batch, queries, keys)
    _check_ids("positions", positions, batch, queries, keys)
    _check_kv_lengths(kv_lengths, batch, keys)
    _check_sinks(sinks, heads)
    _check_pairwise("mask", mask, (batch, heads, queries, keys), jnp.bool_)
    _check_pairwise("bias", bias, (batch, heads, queries, keys), jnp.floating)
    if (causal or window is not None) and positions is None and queries != keys:
        raise _unplaced(f"causal={causal}, window={window}", queries, keys)
    call = AttentionCall(
        batch=batch,
        queries=queries,
        keys=keys,
        heads=heads,
        kv_heads=k.shape[2],
        head_dim=head_dim,
        value_dim=v.shape[3],
        dtype=jnp.dtype(q.dtype),
        causal=causal,
        window=None if window is None else _distances(window, causal=causal),
        segments=segment_ids is not None,
        positions=positions is not None,
        kv_lengths=kv_lengths is not None,
        bias=None if bias is None else tuple(bias.shape),
        mask=None if mask is None else tuple(mask.shape),
        soft_cap=None if soft_cap is None else float(soft_cap),
        sinks=sinks is not None,
        scale=1 / math.sqrt(head_dim) if scale is None else float(scale),
        stats=stats,
        device=device(q, k, v),
    )
    return Plan(
        operation="attention",
        call=call,
        device=call.device,
        implementations=_implementations(call.device.platform, whole=is_whole(q, k, v)),
        impl=impl,
        arrays=(q, k, v),
    )


def _implementations(platform: str, *, whole: bool) -> list[Implementation[AttentionCall]]:
    """Returns the implementations, best first.

    Args:
        platform: Platform of the call's device.
        whole: Whether XLA's partitioner cannot divide the call, so that custom calls come first.
    """
    if platform != "gpu":
        others = [tokamax.TOKAMAX, CUDNN, CUDNN_PACKED, mosaic.MOSAIC]
        return [blocked.BLOCKED, reference.REFERENCE, *others]
    ours = [CUDNN_PACKED, mosaic.MOSAIC]
    best = [*ours, blocked.BLOCKED] if whole else [blocked.BLOCKED, *ours]
    return [CUDNN, tokamax.TOKAMAX, *best, reference.REFERENCE]


def _unplaced(asked: str, queries: Any, keys: Any) -> ValueError:
    return ValueError(
        f"{asked} need to know which query is beside which key where their counts differ, got "
        f"T={queries}, S={keys} and positions=None. Pass positions=(query, key); for a cache "
        "whose last T keys are the queries, jnp.arange(T) + S - T and jnp.arange(S) per row."
    )


def pair(ids: Any) -> tuple[Any, Any]:
    """Returns (query, key) of a pair, or of one array for both."""
    return (ids[0], ids[1]) if isinstance(ids, tuple | list) else (ids, ids)


def _check_qkv(q: Any, k: Any, v: Any) -> None:
    check_arrays("attention", q=q, k=k, v=v)
    shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise ValueError(f"attention needs {_AXES}, got {shapes}. Add the axes that are missing.")
    if 0 in (*q.shape, *k.shape, *v.shape):
        raise ValueError(f"Every axis of {_AXES} must be at least 1, got {shapes}. Skip the call.")
    alike = {
        "batch": (q.shape[0], k.shape[0], v.shape[0]),
        "S": (k.shape[1], v.shape[1]),
        "kv_heads": (k.shape[2], v.shape[2]),
        "head_dim": (q.shape[3], k.shape[3]),
    }
    for axis, sizes in alike.items():
        if len(set(sizes)) > 1:
            raise ValueError(
                f"{axis} must be one size in {_AXES}, got {shapes}. Transpose the one that has its "
                "axes in another order (heads come third), or repeat or cut it to fit."
            )
    if q.shape[2] % k.shape[2]:
        raise ValueError(
            f"heads must be a multiple of kv_heads in {_AXES}, got heads={q.shape[2]} and "
            f"kv_heads={k.shape[2]}. If those are sequence lengths, transpose: heads come third."
        )
    dtypes = f"q={q.dtype}, k={k.dtype}, v={v.dtype}"
    if not jnp.issubdtype(q.dtype, jnp.floating):
        raise TypeError(
            f"q, k and v must be floating point, got {dtypes}. Use .astype(jnp.float32)."
        )
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must be of one dtype, got {dtypes}. Use k.astype(q.dtype).")


def _check_options(
    *, causal: bool, soft_cap: float | None, scale: float | None, stats: bool
) -> None:
    for name, flag in (("causal", causal), ("stats", stats)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(
                f"{name} must be a Python bool, got {name}={flag!r}. Use True or False."
            )
    for name, value in (("soft_cap", soft_cap), ("scale", scale)):
        if value is None:
            continue
        if not isinstance(value, int | float | np.number) or isinstance(value, bool):
            raise TypeError(
                f"{name} must be a Python number, got {name}={value!r}. Mark it static under jit; "
                "to learn a scale, multiply q by it and use scale=1.0."
            )
        if not math.isfinite(value) or (name == "soft_cap" and value <= 0):
            raise ValueError(
                f"{name} must be finite, and soft_cap positive, got {name}={value}. Use "
                f"{name}=None for the default."
            )


def _check_window(window: Any) -> None:
    if window is None:
        return
    sides = window if isinstance(window, tuple | list) else (window,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in sides):
        raise TypeError(
            "window must be a pair (before, after) of Python ints or a Python int, got "
            f"window={window!r}. Mark it static under jit, or use window=None for none."
        )
    if isinstance(window, tuple | list):
        if len(window) != 2 or min(window) < 0:
            raise ValueError(
                "window as a pair counts the keys before and after the query's own, each at least "
                f"0, got window={window}. Use window=(before, after)."
            )
    elif window < 1:
        raise ValueError(
            f"window counts the keys that a query sees, itself among them, so it is at least "
            f"1, got window={window}. Use window=None for none."
        )


def _distances(window: Any, *, causal: bool) -> tuple[int, int]:
    """Returns the largest distances to keys before and after."""
    before, after = window if isinstance(window, tuple | list) else (window - 1, window - 1)
    # Larger ones are equivalent, since positions differ by less than 2**31. This fits int32.
    return min(int(before), 2**31 - 1), 0 if causal else min(int(after), 2**31 - 1)


def _check_pairwise(name: str, array: Any, sizes: tuple[Any, ...], dtype: Any) -> None:
    if array is None:
        return
    check_arrays("attention", **{name: array})
    shape = tuple(array.shape)
    if len(shape) != 4 or any(n not in (1, size) for n, size in zip(shape, sizes, strict=True)):
        raise ValueError(
            f"{name} must be [batch, heads, T, S] = {sizes}, each or 1, got shape {shape}. Give it "
            f"four axes, such as {name}[:, None, None, :] for one row of keys per batch row."
        )
    if not jnp.issubdtype(array.dtype, dtype):
        kind, cast = ("bool", "!= 0") if dtype == jnp.bool_ else ("floating", ".astype(q.dtype)")
        raise TypeError(
            f"{name} must be {kind}, got dtype={array.dtype}. Use {name} {cast}; numbers to add to "
            "the logits are a bias, and mask=True shows a key."
        )


def _check_ids(name: str, ids: Any, batch: Any, queries: Any, keys: Any) -> None:
    if ids is None:
        return
    if isinstance(ids, tuple | list) and len(ids) != 2:
        raise ValueError(
            f"{name} must be one array or a pair (query, key), got a sequence of {len(ids)}. Use "
            f"{name}=(query, key)."
        )
    if not isinstance(ids, tuple | list) and queries != keys:
        raise ValueError(
            f"{name} of one array serves queries and keys of one length, got T={queries} and "
            f"S={keys}. Use {name}=(query, key)."
        )
    for side, array, length in zip(("query", "key"), pair(ids), (queries, keys), strict=True):
        if tuple(array.shape) != (batch, length):
            raise ValueError(
                f"{name} of the {side} side must be [batch, length] = {(batch, length)}, got shape "
                f"{tuple(array.shape)}. Use jnp.broadcast_to for rows that share it."
            )
        if not jnp.issubdtype(array.dtype, jnp.signedinteger):
            raise TypeError(
                f"{name} must be signed integers (differences are taken), got dtype={array.dtype}. "
                "Use .astype(jnp.int32)."
            )


def _check_kv_lengths(kv_lengths: Any, batch: Any, keys: Any) -> None:
    if kv_lengths is None:
        return
    if tuple(kv_lengths.shape) != (batch,):
        raise ValueError(
            f"kv_lengths must be [batch] = {(batch,)}, got shape {tuple(kv_lengths.shape)}. Use "
            "jnp.full(batch, length) for one length."
        )
    if not jnp.issubdtype(kv_lengths.dtype, jnp.signedinteger):
        raise TypeError(
            f"kv_lengths must be signed integers, got dtype={kv_lengths.dtype}. Use "
            ".astype(jnp.int32)."
        )
    lengths = known(kv_lengths)
    if lengths is not None:
        low, high = lengths.min(), lengths.max()
        if low < 0 or high > keys:
            raise ValueError(
                f"kv_lengths must lie in 0..S, got {low}..{high} with S={keys}. Pass the keys that "
                "they count, or jnp.minimum(kv_lengths, S)."
            )


def _check_sinks(sinks: Any, heads: Any) -> None:
    if sinks is None:
        return
    if tuple(sinks.shape) != (heads,):
        raise ValueError(
            f"sinks must be [heads] = {(heads,)}, one logit per query head, got shape "
            f"{tuple(sinks.shape)}. Use jnp.full(heads, logit) for one logit."
        )
    if not jnp.issubdtype(sinks.dtype, jnp.floating):
        raise TypeError(
            f"sinks must be floating point, got dtype={sinks.dtype}. Use .astype(jnp.float32)."
        )
