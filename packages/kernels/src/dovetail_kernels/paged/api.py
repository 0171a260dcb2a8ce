# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over a cache of pages, for batches of prefilling and decoding requests."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays
from dovetail_kernels.dispatch import Impl, Implementation, Plan, device, run
from dovetail_kernels.mesh import is_whole, per_shard
from dovetail_kernels.paged.call import PagedCall, PagedInputs
from dovetail_kernels.paged.cudnn import CUDNN
from dovetail_kernels.paged.gather import GATHER
from dovetail_kernels.paged.pages import FLOATS, QuantizedPages, check_pages, codes_of
from dovetail_kernels.paged.reference import REFERENCE
from dovetail_kernels.paged.requests import check, int32, known_integers

# By whether XLA leaves the call whole: it would gather the cache for a custom call it may divide.
_ORDERS = {True: (CUDNN, GATHER, REFERENCE), False: (GATHER, CUDNN, REFERENCE)}


@operation
def paged_attention(
    q: Float[Array, "M N H"],
    pages: Float[Array, "P kv page K H"] | QuantizedPages,
    *,
    page_table: Integer[Array, "R C"] | Integer[np.ndarray, "R C"],
    kv_lengths: Integer[Array, " R"] | Integer[np.ndarray, " R"],
    q_starts: Integer[Array, " R1"] | Integer[np.ndarray, " R1"],
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    scale: float | None = None,
    value_width: int | None = None,
    lse: bool = False,
    invariant: bool = False,
    impl: Impl | None = None,
) -> Any:
    """Computes softmax(scale q·k) v, causally over the cached keys of each row's request.

    A batch holds the rows of R requests, one after the other. Rows q_starts[r] to q_starts[r + 1]
    belong to request r and are the last of its kv_lengths[r] keys: row i of n is at position
    kv_lengths[r] - n + i and sees the keys up to its own. One row is decoding, many are prefill or
    a chunk of it, none is an idle request. Write the keys of q's rows with `paged_write` first.
    Head n uses key head n // (N / K).

    Args:
        q: Queries [M, N, H]. Rows from q_starts[-1] on are padding: their output is 0 and they may
            hold anything. Heads may be sharded.
        pages: Cache [P, 2, page, K, H] of any float dtype; [:, 0] are keys and [:, 1] values.
            Or `QuantizedPages`. Blocks are converted when they are used. Key heads may be sharded,
            by the mesh axis of q's heads.
        page_table: Page ids [R, C], integers. Entry [r, c] holds keys c * page to (c + 1) * page of
            request r. Entries without a visible key (beyond kv_lengths, or before the window) are
            not read.
        kv_lengths: Number of keys of each request, its queries included, [R].
        q_starts: First row of each request, then the end of the last, [R + 1]. Starts with 0. For
            decoding without padding, `np.arange(R + 1)` is known under a trace and saves a launch.
        window: A row sees the last `window` keys up to its own. None: all.
        soft_cap: Replaces each logit by `c tanh(logit / c)`.
        sinks: One logit per head [N], added to the denominator only. May be sharded like q.
        scale: Default 1 / sqrt(H).
        value_width: For latent attention (DeepSeek-V2, 2405.04434, section 2.1, with absorbed
            projections): pages [P, 1, page, K, H] hold one entry for each key, and the value is its
            first `value_width` elements. None for pages of keys and values.
        lse: Also return the log-sum-exp of each row's logits, to merge attention over parts of the
            keys: out = Σ exp(lse_i - lse) out_i with lse = log Σ exp(lse_i).
        invariant: On CPU, give a row the same bits for any number of rows of its request, so that a
            prompt may be cut anywhere. A decoding row then costs the products of eight, and a
            prefill reads its keys once for every eight rows.
        impl: An implementation, by name or as `implementations.Implementation`, or several in order
            of preference; see `explain`.

    Returns:
        Output [M, N, H], or [M, N, value_width], in q's dtype, accumulated in float32 (float64 if q
        or pages are float64). The rest of the batch does not change a request's output, and on CPU
        not even its bits. With `lse` the pair (output, lse f32[M, N]); sinks count in lse, and
        padding has -inf.

    Raises:
        ValueError: Shapes, dtypes or options contradict each other, or known values do. Under a
            trace, rows of a request with a page id or a length out of range become NaN, and all
            rows if q_starts falls or ends beyond q.
        NotImplementedError: A gradient is requested. A cache is for inference.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import paged_attention
        >>> pages = jnp.arange(16.0).reshape(2, 2, 4, 1, 1)
        >>> table, lengths = jnp.array([[1, 0]], jnp.int32), jnp.array([3], jnp.int32)
        >>> out = paged_attention(jnp.zeros((1, 1, 1)), pages, page_table=table, kv_lengths=lengths,
        ...                       q_starts=jnp.array([0, 1], jnp.int32))
        >>> out.tolist()
        [[[13.0]]]
    """
    plan = plan_paged_attention(
        q,
        pages,
        page_table=page_table,
        kv_lengths=kv_lengths,
        q_starts=q_starts,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        scale=scale,
        value_width=value_width,
        lse=lse,
        invariant=invariant,
        impl=impl,
    )
    check(plan.call, page_table, kv_lengths, q_starts)
    attend = functools.partial(_run, plan.choose(), plan.call)
    numbers = [int32(a) for a in (page_table, kv_lengths, q_starts)]
    scales = pages.scales if isinstance(pages, QuantizedPages) else None
    return per_shard(
        plan.operation,
        _without_gradient(attend),
        (q, codes_of(pages), scales, *numbers, sinks),
        ("mnh", "pstnh", "pstn", "rc", "r", "e", "n"),
        out=("mnh", "mn") if lse else "mnh",
        may="n",
        instead="Use jax.sharding.reshard to shard heads alone.",
    )


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)  # eager calls compile once
def _run(
    implementation: Implementation[PagedCall],
    call: PagedCall,
    q: Array,
    codes: Array,
    scales: Array | None,
    *others: Any,
) -> Any:
    pages = codes if scales is None else QuantizedPages(codes=codes, scales=scales)
    local = dataclasses.replace(call, heads=q.shape[1], kv_heads=codes.shape[3])
    return run("paged_attention", implementation, local, PagedInputs(q, pages, *others))


def plan_paged_attention(
    q: Any,
    pages: Any,
    *,
    page_table: Any,
    kv_lengths: Any,
    q_starts: Any,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    value_width: int | None = None,
    lse: bool = False,
    invariant: bool = False,
    impl: Impl | None = None,
) -> Plan[PagedCall]:
    """Returns the plan of a call of `paged_attention`, from shapes and dtypes alone.

    Args:
        q: As in `paged_attention`, like all arguments. Arrays, or anything with a shape and a
            dtype.
        pages: Cache [P, 2, page, K, H].
        page_table: Page ids [R, C].
        kv_lengths: Number of keys of each request, [R].
        q_starts: First row of each request, then the end of the last, [R + 1].
        window: Number of visible keys.
        soft_cap: Cap of the logits.
        sinks: One logit per head [N].
        scale: Factor of the logits. Default 1 / sqrt(H).
        value_width: Elements of a key that are its value.
        lse: Whether the log-sum-exp is returned.
        invariant: Whether bits do not depend on the number of rows of a request.
        impl: Implementations, in order of preference.

    Raises:
        ValueError: Shapes, dtypes or options contradict each other.
    """
    check_arrays(
        "paged_attention",
        q=q,
        pages=codes_of(pages),
        page_table=page_table,
        kv_lengths=kv_lengths,
        q_starts=q_starts,
        sinks=sinks,
    )
    check_pages(pages)
    pages = codes_of(pages)
    _check_shapes(q, pages, page_table, kv_lengths, q_starts, sinks)
    _check_options(window=window, soft_cap=soft_cap, scale=scale)
    _check_value_width(value_width, pages)
    call = PagedCall(
        queries=q.shape[0],
        heads=q.shape[1],
        kv_heads=pages.shape[3],
        width=q.shape[2],
        pages=pages.shape[0],
        page_size=pages.shape[2],
        requests=page_table.shape[0],
        columns=page_table.shape[1],
        dtype=np.dtype(q.dtype).name,
        pages_dtype=np.dtype(pages.dtype).name,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks is not None,
        scale=q.shape[2] ** -0.5 if scale is None else float(scale),
        value_width=None if value_width is None else int(value_width),
        lse=bool(lse),
        invariant=bool(invariant),
        single=_single(q, q_starts),
        device=device(q, pages),
    )
    return Plan(
        operation="paged_attention",
        call=call,
        device=call.device,
        implementations=_ORDERS[is_whole(q, pages)],
        impl=impl,
        arrays=(q, pages),
    )


def _single(q: Any, q_starts: Any) -> bool:
    """Whether each request is known to have one row."""
    starts = known_integers(q_starts)
    if starts is None or q.shape[0] != len(starts) - 1:
        return False
    return bool((starts == np.arange(len(starts))).all())


def _check_shapes(
    q: Any, pages: Any, page_table: Any, kv_lengths: Any, q_starts: Any, sinks: Any
) -> None:
    if len(q.shape) != 3 or q.shape[2] != pages.shape[4]:
        raise ValueError(
            f"q must be [rows, heads, width] with the width {pages.shape[4]} of pages, got "
            f"q.shape={tuple(q.shape)} and pages.shape={tuple(pages.shape)}. Use "
            f"q.reshape(-1, heads, {pages.shape[4]})."
        )
    heads, kv_heads = q.shape[1], pages.shape[3]
    if heads == 0 or heads % kv_heads:
        raise ValueError(
            f"q's heads (axis 1) must be a multiple of the key heads (axis 3 of pages), got "
            f"heads={heads} and key heads={kv_heads}. Check that no axes were swapped."
        )
    if q.dtype not in FLOATS:
        raise ValueError(
            f"q must be of {', '.join(FLOATS)}, got q.dtype={q.dtype}. Use q.astype(jnp.float32)."
        )
    if len(page_table.shape) != 2 or page_table.shape[1] == 0:
        raise ValueError(
            f"page_table must be [requests, columns] with a column at least, got "
            f"page_table.shape={tuple(page_table.shape)}. Use page_table[None] for one request."
        )
    requests = page_table.shape[0]
    wanted = {"kv_lengths": (kv_lengths, (requests,)), "q_starts": (q_starts, (requests + 1,))}
    if sinks is not None:
        wanted["sinks"] = (sinks, (heads,))
    for name, (array, shape) in wanted.items():
        if tuple(array.shape) != shape:
            raise ValueError(
                f"{name} must be {list(shape)} for {requests} requests (rows of page_table) and "
                f"{heads} heads, got {name}.shape={tuple(array.shape)}. Use one number for each."
            )
    for name, array in {"page_table": page_table, **{n: a for n, (a, _) in wanted.items()}}.items():
        if name != "sinks" and not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(
                f"{name} must be integers, got {name}.dtype={array.dtype}. Use "
                f"{name}.astype(jnp.int32)."
            )


def _check_options(*, window: int | None, soft_cap: float | None, scale: float | None) -> None:
    if window is not None and window < 1:
        raise ValueError(
            f"window must be 1 or more keys, a row's own among them, got window={window}. Leave it "
            f"out to see all."
        )
    if soft_cap is not None and not (soft_cap > 0 and math.isfinite(soft_cap)):
        raise ValueError(
            f"soft_cap must be positive and finite, got soft_cap={soft_cap}. Leave it out for none."
        )
    if scale is not None and not math.isfinite(scale):
        raise ValueError(
            f"scale must be finite, got scale={scale}. Leave it out for 1 / sqrt(width)."
        )


def _check_value_width(value_width: int | None, pages: Any) -> None:
    entries, width = pages.shape[1], pages.shape[4]
    if (entries == 1) != (value_width is not None):
        use = "Leave it out" if entries == 2 else f"Use value_width={width}, or less"
        raise ValueError(
            f"value_width belongs to pages of one entry for each key, [pages, 1, page, key heads, "
            f"width], and they to it, got value_width={value_width} and "
            f"pages.shape={tuple(pages.shape)}. {use}."
        )
    if value_width is not None and not 1 <= value_width <= width:
        raise ValueError(
            f"value_width must be from 1 to the width of pages, {width}, got "
            f"value_width={value_width}. Use value_width={width} for the whole key."
        )


def _without_gradient(run: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a derivative of `run` raise an error with the alternative.

    The loop of one implementation has no reverse mode, and JAX's error would name the loop.
    """
    wrapped = jax.custom_jvp(run)

    @wrapped.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            "paged_attention has no gradient, as a cache is for inference, got a call inside "
            "jax.grad, jax.vjp or jax.jvp. Use attention on contiguous keys to train, or "
            "jax.lax.stop_gradient on q and pages."
        )

    return wrapped
