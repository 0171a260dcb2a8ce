# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks, in plain jnp. Memory is linear in T and S; hidden blocks are skipped.

FlashAttention-2 (2307.08691) under `custom_vjp`: it keeps `out` and `lse` and recomputes the logits
in the backward pass. The loops therefore need no derivative, and their bounds may be traced: each
block of queries visits only blocks of keys with possibly visible pairs (`bounds`). Loops over
heads, as on a GPU, would make small products. Here every product spans all heads of a block, and
XLA's threads divide it.

Rows of a batch see different blocks. A product over several rows visits as many blocks as the
longest row needs (3.4 times the work of one row after another, with one long row in 8). On a CPU,
rows are therefore processed one by one, unless they are divided among devices. A single query per
row has products of its own there (`single`). Under an Auto mesh
of several devices, known from the array types, rows stay together: a loop over a sharded axis would
gather it. Sharding by `in_shardings` alone is not visible in the types; commit such arrays to their
mesh.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType
from jaxtyping import Array, Float

from dovetail_kernels.arrays import Cut, converts_whole, cut
from dovetail_kernels.attention import backward as _backward
from dovetail_kernels.attention import forward as _forward
from dovetail_kernels.attention import single, tiles
from dovetail_kernels.attention.bounds import visits
from dovetail_kernels.attention.call import AttentionCall, Inputs, local
from dovetail_kernels.attention.stats import SoftmaxStats
from dovetail_kernels.derivatives import INSTEAD, first_order, reverse_mode
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.mesh import varying
from dovetail_kernels.symbolic import is_symbolic

once = functools.partial(first_order, "attention", INSTEAD)
reverse = functools.partial(reverse_mode, "attention")
NAME = "attn_out"  # of out and lse, for the policies of `jax.checkpoint`


def run(call: AttentionCall, inputs: Inputs) -> Any:
    """Returns `out`, or `(out, SoftmaxStats)` if `call.stats`."""
    out, lse, largest = _attend(call, reverse(inputs))
    return (out, SoftmaxStats(lse=lse, max=jax.lax.stop_gradient(largest))) if call.stats else out


def forward(
    call: AttentionCall, inputs: Inputs
) -> tuple[Float[Array, "b t n g"], Float[Array, "b t n"], Float[Array, "b n"]]:
    """Returns (out, lse, largest logit per head) as in `SoftmaxStats`. Not differentiable."""
    if _is_single(call) and not _divided(inputs):
        joined = single.joined(call)
        out, lse, largest = _rows_forward(joined, single.join(call, inputs))
        return single.split(call, out), lse, largest
    return _rows_forward(call, inputs)


def _rows_forward(call: AttentionCall, inputs: Inputs) -> tuple[Array, Array, Array]:
    blocks = _cuts(call)
    if not _one_by_one(call, inputs):
        return _forward.forward(call, inputs, *blocks)
    # Keys and values are no operands of the map: it would copy those of a row before its blocks.
    rows, shared = _rows(inputs._replace(k=None, v=None))
    shared |= {"k": tiles.filled(inputs.k, blocks[1]), "v": tiles.filled(inputs.v, blocks[1])}

    def row_forward(xs: tuple[Array, Inputs]) -> Any:
        row = xs[1]._replace(**shared)
        return _forward.forward(
            dataclasses.replace(local(call, row), kv_heads=call.kv_heads), row, *blocks, row=xs[0]
        )

    results = jax.lax.map(row_forward, (jnp.arange(call.batch, dtype=jnp.int32), rows))
    return results[0][:, 0], results[1][:, 0], results[2][:, 0]


# Compiled once for eager gradients too.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def backward(
    call: AttentionCall,
    inputs: Inputs,
    out: Float[Array, "b t n g"],
    lse: Float[Array, "b t n"],
    dout: Float[Array, "b t n g"],
    dlse: Float[Array, "b t n"],
) -> Inputs:
    """Computes the gradients of q, k, v, sinks and bias.

    Args:
        call: The call.
        inputs: Its arrays.
        out: Output of any implementation's forward [b, t, n, g].
        lse: Log-sum-exp of the same forward [b, t, n].
        dout: Cotangent of `out`.
        dlse: Cotangent of `lse`.

    Returns:
        The gradients as `Inputs`. `sinks` and `bias` are None if the call has none.
    """
    blocks = _cuts(call)
    inner = call.inner_dtype
    delta = (out.astype(inner) * dout.astype(inner)).sum(-1) - dlse
    if _one_by_one(call, inputs):
        dq, dk, dv, dbias = _backward_by_row(call, inputs, lse, delta, dout)
    else:
        dq, dk, dv, dbias = _backward.backward(call, inputs, lse, delta, dout, *blocks)
    dsinks = None
    if inputs.sinks is not None:
        # The sink's share of its row's denominator; 0 without a sink (-inf).
        sinks = inputs.sinks.astype(inner)[None, None, :]
        share = jnp.where(sinks == -jnp.inf, 0, jnp.exp(sinks - lse))
        dsinks = -(share * delta).sum((0, 1)).astype(inputs.sinks.dtype)
    if inputs.bias is not None and dbias is not None:
        dbias = dbias.astype(inputs.bias.dtype)
    return Inputs(q=dq, k=dk, v=dv, sinks=dsinks, bias=dbias)


def _backward_by_row(
    call: AttentionCall, inputs: Inputs, lse: Array, delta: Array, dout: Array
) -> tuple[Array, Array, Array, Array | None]:
    rows, shared = _rows(inputs)
    bias, blocks = shared.get("bias"), _cuts(call)

    def row_backward(total: Array | None, xs: Any) -> tuple[Array | None, Any]:
        row, row_lse, row_delta, row_dout = xs
        row = row._replace(**shared)
        dq, dk, dv, dbias = _backward.backward(
            local(call, row), row, row_lse, row_delta, row_dout, *blocks
        )
        if total is None or dbias is None:
            return None, (dq, dk, dv, dbias)
        return total + dbias, (dq, dk, dv, None)

    # All rows add to the gradient of a bias that they share. Stacked, it would be one per row.
    total = None if bias is None else varying(jnp.zeros(bias.shape, call.inner_dtype), inputs.q)
    rows = rows, lse[:, None], delta[:, None], dout[:, None]
    total, results = jax.lax.scan(row_backward, total, rows)
    dq, dk, dv, dbias = jax.tree.map(lambda x: x[:, 0], results)
    return dq, dk, dv, dbias if total is None else total


def _attend_forward(call: AttentionCall, inputs: Inputs) -> tuple[Any, Any]:
    out, lse, largest = forward(call, inputs)
    # With these saved, `jax.checkpoint` runs the forward pass once. dovetail-models and others save
    # this name.
    out, lse = checkpoint_name(out, NAME), checkpoint_name(lse, NAME)
    return (out, lse, largest), (inputs, out, lse)


def _attend_backward(call: AttentionCall, kept: Any, cotangents: Any) -> tuple[Inputs]:
    inputs, out, lse = once(kept)
    dout, dlse, _ = (jnp.asarray(x) for x in once(cotangents))
    return (backward(call, inputs, out, lse, dout, dlse),)


_attend: Any = jax.custom_vjp(forward, nondiff_argnums=(0,))
_attend.defvjp(_attend_forward, _attend_backward)


def _one_by_one(call: AttentionCall, inputs: Inputs) -> bool:
    return call.batch != 1 and call.device.platform == "cpu" and not _divided(inputs)


def _is_single(call: AttentionCall) -> bool:
    return call.queries == 1 and call.kv_heads > 1 and call.device.platform == "cpu"


def _divided(inputs: Inputs) -> bool:
    mesh = jax.typeof(inputs.q).sharding.mesh
    return any(
        kind == AxisType.Auto and size > 1
        for kind, size in zip(mesh.axis_types, mesh.axis_sizes, strict=True)
    )


def _rows(inputs: Inputs) -> tuple[Inputs, dict[str, Array]]:
    """Returns arrays with an axis of rows before a batch of 1, and those shared by all rows."""
    pairwise = {name: getattr(inputs, name) for name in ("bias", "mask")}
    shared = {name: x for name, x in pairwise.items() if x is not None and x.shape[0] == 1}
    shared |= {} if inputs.sinks is None else {"sinks": inputs.sinks}
    rows = inputs._replace(**dict.fromkeys(shared))
    return jax.tree.map(lambda x: x[:, None], rows), shared


def _cuts(call: AttentionCall) -> tuple[Cut, Cut]:
    """Chooses blocks with a tile of logits small enough for a near cache.

    CPU: at most 2 MiB, the second-level cache of a core, and at most 128 a side, the fastest or
    equal to it with 1, 8 or 32 heads (of 64 to 512). Products below 64 no longer pay for
    themselves. Elsewhere a product needs enough rows for the whole device, and its cache holds 64
    MiB. This choice has not been measured.
    """
    cpu = call.device.platform == "cpu"
    # A symbolic batch (`jax.export`) counts as one row.
    batch = 1 if cpu or not isinstance(call.batch, int) else call.batch
    heads = call.heads * batch
    tile = (2 if cpu else 64) * 2**20 // (heads * call.inner_dtype.itemsize)
    # Largest power of two with a square that fits the tile.
    size = 2 ** (math.isqrt(max(tile, 1)).bit_length() - 1)
    size = min(max(size, 64), 128 if cpu else 1024)
    return cut(call.queries, size), cut(call.keys, size)


def _work(call: AttentionCall) -> Work:
    """Counts the products of visited blocks, and each array once: blocks of keys stay in cache."""
    queries, keys = _cuts(call)
    pairs = call.batch * call.heads * visits(call, queries, keys) * queries.size * keys.size
    width = call.head_dim + call.value_dim
    rows = call.batch * (call.queries * call.heads + call.keys * call.kv_heads)
    lse = call.batch * call.queries * call.heads * call.inner_dtype.itemsize
    joined = call.kv_heads if _is_single(call) else 1
    return Work(
        flops=2 * pairs * width * joined,
        bytes=rows * width * call.dtype.itemsize + lse + call.pairwise_bytes,
        peak_bytes=_peak_bytes(call, queries, keys),
    )


def _peak_bytes(call: AttentionCall, queries: Cut, keys: Cut) -> int:
    """Counts the tiles of one visit, the statistics, and the copies of whole arrays."""
    inner, item = call.inner_dtype.itemsize, call.dtype.itemsize
    cpu, width = call.device.platform == "cpu", call.head_dim + call.value_dim
    by_row = cpu and call.batch > 1
    batch = 1 if by_row else call.batch
    tile = 2 * call.heads * queries.size * keys.size
    tile += width * (queries.size * call.heads + keys.size * call.kv_heads)
    total = batch * tile * inner + 2 * call.batch * call.queries * call.heads * inner
    # Rows are filled to whole blocks, and joined after the loop over them.
    filled_q, filled_k = queries.size * queries.blocks, keys.size * keys.blocks
    if filled_q > call.queries:
        total += batch * call.heads * filled_q * width * item
    if filled_k > call.keys:
        total += call.batch * call.kv_heads * filled_k * width * item
    if _is_single(call):
        total += call.batch * call.heads * call.kv_heads * width * item
    elif by_row:
        total += call.batch * call.heads * call.queries * call.value_dim * item
    if call.bias is not None and filled_k > call.keys and call.bias[3] > 1:
        total += math.prod(call.bias[:3]) * filled_k * inner
    converted = converts_whole(call.dtype, call.device.platform)
    if converted or (by_row and not _is_single(call) and jax.__version_info__ < (0, 12)):
        of_queries = call.heads * call.queries * call.head_dim
        of_keys = call.kv_heads * call.keys * width
        total += call.batch * (of_queries + of_keys) * (inner if converted else item)
    return total


def refuse(call: AttentionCall) -> str | None:
    """Returns why a kernel of blocks cannot do a call with symbolic sizes, or None."""
    sizes = {"T": call.queries, "S": call.keys, "heads": call.heads, "kv_heads": call.kv_heads}
    symbolic = [f"{name}={size}" for name, size in sizes.items() if is_symbolic(size)]
    return f"cuts blocks of known sizes, not {', '.join(symbolic)}" if symbolic else None


BLOCKED = Implementation(name="blocked", refuse=refuse, work=_work, run=run)
