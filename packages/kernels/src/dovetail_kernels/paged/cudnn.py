# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding over pages by cuDNN's fused attention, on NVIDIA GPUs.

Pages [P, 2, page, K, H] are read in place: as [2 P, page, K, H] they are one pool of blocks, where
page t has its keys in block 2 t and its values in block 2 t + 1. Each row of q is a sequence of
its own with one query, the pages of its request, and the keys up to its own. So several rows of a
request are right too, but each reads the keys again: calls with more rows than requests go to
"gather", which reads keys once for several rows.

Rows without a request get one key, and their output is replaced. If each request is known to have
one row, there are none, and a query of NaN marks the row of an invalid request: one launch fewer.

Keys beyond a row's own may be anything, also NaN: cuDNN's kernel for Ampere to Hopper loads zeros
in their place (the source in cuDNN 9.28: `page_container_oob_row`). Its kernels for later GPUs load
whole blocks, where 0 · NaN would spread, so those GPUs are refused. No entry of a table names a
page of another request.
"""

import functools
import re

import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, Int

from dovetail_kernels.attention.cudnn import call as fused
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.paged.call import PagedCall, PagedInputs
from dovetail_kernels.paged.requests import Requests, requests
from dovetail_kernels.symbolic import is_symbolic

_HOPPER = re.compile(r"\b(GH200|H100|H200|H800|H20)\b")
_AMPERE = re.compile(
    r"\b(A100|A800|A40|A30|A16|A10|A10G|A2|A[456]000|L40S?|L4|L20|RTX [34]0\d\d)\b"
)


def run(call: PagedCall, inputs: PagedInputs) -> Float[Array, "M N H"]:
    """Computes softmax(scale q·k) v of each row, over its visible keys, in q's dtype."""
    q, pages, page_table, kv_lengths, q_starts, _ = inputs
    batch = requests(call, page_table, kv_lengths, q_starts)
    table, lengths = tables(call, batch)
    attend = sequential_vmap(functools.partial(_attend, call))
    bad = batch.row_bad[:, None, None]
    if call.single:
        return attend(jnp.where(bad, jnp.nan, q), pages, table, lengths)
    out = jnp.where(batch.row_owned[:, None, None], attend(q, pages, table, lengths), 0)
    return jnp.where(bad, jnp.nan, out).astype(q.dtype)


def tables(call: PagedCall, batch: Requests) -> tuple[Int[Array, "M C"], Int[Array, " M"]]:
    """Returns the page ids and the number of keys of each row of q.

    Columns without a visible key repeat the row's first page. A row without a request has one key,
    in page 0.
    """
    request = batch.row_request
    row = jnp.arange(call.queries, dtype=jnp.int32)
    position = batch.first[request] + row - batch.starts[request]
    lengths = jnp.where(batch.row_owned, position + 1, 1)
    first_key = jnp.arange(call.columns, dtype=jnp.int32)[None] * call.page_size
    ids = jnp.where(batch.row_owned[:, None], batch.page_ids[request], 0)
    return jnp.where(first_key < lengths[:, None], ids, ids[:, :1]), lengths


def _attend(
    call: PagedCall,
    q: Float[Array, "M N H"],
    pages: Float[Array, "P 2 page K H"],
    table: Int[Array, "M C"],
    lengths: Int[Array, " M"],
) -> Float[Array, "M N H"]:
    pool = pages.reshape(-1, *pages.shape[2:])
    blocks = 2 * table[:, None, :, None]
    out, _ = fused.forward(
        fused.Form(scale=call.scale, mask="PADDING"),
        q[:, None],
        pool,
        pool,
        lengths=fused.Lengths(queries=jnp.minimum(lengths, 1), keys=lengths),
        pages=fused.Pages(keys=blocks, values=blocks + 1),
    )
    return out[:, 0]


def refuse(call: PagedCall) -> str | None:
    """Returns why cuDNN cannot give the documented answer, or is not the faster one, or None."""
    return (
        _refuse_device(call)
        or fused.refuse_version()
        or _refuse_options(call)
        or _refuse_shapes(call)
    )


def _refuse_device(call: PagedCall) -> str | None:
    platform, kind = call.device.platform, call.device.kind
    if platform != "gpu":
        return f"it runs on NVIDIA GPUs, not on {platform}"
    if not (_HOPPER.search(kind) or _AMPERE.search(kind)):
        return f"NaN beyond a row's keys is known to stay there on Ampere to Hopper, not on {kind}"
    return None


def _refuse_options(call: PagedCall) -> str | None:
    unknown = {
        "window": call.window is not None,
        "soft_cap": call.soft_cap is not None,
        "sinks": call.sinks,
        "value_width": call.value_width is not None,
        "lse": call.lse,
        "QuantizedPages": call.quantized,
    }
    asked = [name for name, given in unknown.items() if given]
    return f"it has no {', '.join(asked)}" if asked else None


def _refuse_shapes(call: PagedCall) -> str | None:
    sizes = {"rows": call.queries, "requests": call.requests, "columns": call.columns}
    sizes |= {"pages": call.pages, "page_size": call.page_size}
    symbolic = [f"{name}={size}" for name, size in sizes.items() if is_symbolic(size)]
    if symbolic:
        return f"its configuration has known sizes, not {', '.join(symbolic)}"
    if call.dtype not in ("bfloat16", "float16") or call.pages_dtype != call.dtype:
        return (
            f"it takes q and pages of bfloat16, or of float16, not {call.dtype} and "
            f"{call.pages_dtype}"
        )
    largest = 256 if _HOPPER.search(call.device.kind) else 128
    if call.width % 8 or call.width > largest:
        return (
            f"on {call.device.kind} heads must be a multiple of 8 up to {largest} wide, not "
            f"{call.width}"
        )
    if call.page_size < 16 or call.page_size & (call.page_size - 1):
        return f"pages must be a power of two from 16 keys, not {call.page_size}"
    if not 0 < call.queries <= call.requests:
        return (
            f"it is for decoding, with a row for each request at most, not rows={call.queries} of "
            f"requests={call.requests}"
        )
    return None


def _work(call: PagedCall) -> Work:
    """Returns the cost if every row has the longest length."""
    rows = call.queries * call.heads * call.width
    size = jnp.dtype(call.dtype).itemsize
    read = call.queries * call.keys * 2 * call.kv_heads * call.width
    tables_bytes = 3 * 4 * call.queries * call.columns
    return Work(
        flops=4 * rows * call.keys,
        bytes=(read + 2 * rows) * size + tables_bytes,
        peak_bytes=rows * size + tables_bytes,
    )


CUDNN = Implementation[PagedCall](name="cudnn", refuse=refuse, work=_work, run=run)
