# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention by our own kernel on Hopper GPUs: its forward, with the backward of `blocked`.

Both forwards keep the same out and lse, so this backward can follow either. On an H100 with jax
0.11.2, the forward took 1.4 times cuDNN's time and .10 of that of `blocked`, with gradients .69
(benchmarks/results/accelerator.jsonl); on an H200, with 4 documents a row, .13 and .66. It
therefore comes before `blocked`, unless XLA may divide the call among devices, for which Pallas
lowers no such kernel (`whole`). With other versions of JAX, whose Pallas differs, it has been
lowered and run by Pallas's interpreter, not on a device.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from dovetail_kernels.arrays import Cut
from dovetail_kernels.attention import blocked
from dovetail_kernels.attention.bounds import visits
from dovetail_kernels.attention.call import AttentionCall, Inputs
from dovetail_kernels.attention.stats import SoftmaxStats
from dovetail_kernels.dispatch import Implementation, Work, refuse_beside_hopper

_WIDTHS = (64, 128)


def run(call: AttentionCall, inputs: Inputs) -> Array | tuple[Array, SoftmaxStats]:
    """Computes `attention` by the kernel."""
    results: Any = _attend(call, blocked.reverse(inputs))
    out, lse, largest = results
    return (out, SoftmaxStats(lse, jax.lax.stop_gradient(largest))) if call.stats else out


def refuse(call: AttentionCall) -> str | None:
    """Returns why the kernel cannot do a call, or None."""
    if refusal := refuse_beside_hopper(call.device):
        return refusal
    if call.dtype not in (jnp.bfloat16, jnp.float16):
        return f"takes bfloat16 and float16, got dtype={call.dtype}"
    if call.head_dim not in _WIDTHS or call.value_dim not in _WIDTHS:
        return (
            f"takes a head_dim and a value_dim of 64 or 128, got head_dim={call.head_dim}, "
            f"value_dim={call.value_dim}"
        )
    if call.bias is not None or call.mask is not None:
        return "reads conditions of keys, not a bias or mask [T, S]"
    return blocked.refuse(call)


def work(call: AttentionCall) -> Work:
    """Counts products over whole blocks of 128 queries and 128 keys, and each array once."""
    queries, keys = _cuts(call)
    pairs = call.batch * call.heads * visits(call, queries, keys) * queries.size * keys.size
    width = call.head_dim + call.value_dim
    # With masks, keys and values are cleaned first: read, written, and read again.
    keys_read = call.keys * call.kv_heads * (3 if call.masked else 1)
    values = call.batch * (call.queries * call.heads + keys_read) * width
    statistics = 2 * 4 * call.batch * call.queries * call.heads
    item = call.dtype.itemsize
    filled_q, filled_k = queries.size * queries.blocks, keys.size * keys.blocks
    copies = 0
    if filled_q > call.queries:
        copies += call.batch * call.heads * filled_q * width
    if call.masked or filled_k > call.keys:
        copies += call.batch * call.kv_heads * filled_k * width
    return Work(
        flops=2 * pairs * width,
        bytes=item * values + statistics,
        peak_bytes=item * copies + statistics,
    )


def _usual_work(call: AttentionCall) -> Work:
    """Counts positions of as many queries as keys as the indices, as `visible_pairs` does."""
    indices = call.positions and call.queries == call.keys
    return work(dataclasses.replace(call, positions=False) if indices else call)


def _cuts(call: AttentionCall) -> tuple[Cut, Cut]:
    from dovetail_kernels.attention._mosaic_kernel import KEYS, QUERIES

    return Cut(QUERIES, -(-call.queries // QUERIES)), Cut(KEYS, -(-call.keys // KEYS))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: AttentionCall, inputs: Inputs) -> tuple[Array, Array, Array]:
    return forward(call, inputs)


def _attend_fwd(call: AttentionCall, inputs: Inputs) -> tuple[tuple[Array, Array, Array], tuple]:
    inputs = blocked.once(inputs)
    out, lse, largest = forward(call, inputs)
    out, lse = checkpoint_name(out, blocked.NAME), checkpoint_name(lse, blocked.NAME)
    return (out, lse, largest), (inputs, out, lse)


def _attend_bwd(call: AttentionCall, kept: tuple, cotangents: tuple) -> tuple[Inputs]:
    kept, cotangents = blocked.once((kept, cotangents))
    return (blocked.backward(call, *kept, *cotangents[:2]),)


_attend.defvjp(_attend_fwd, _attend_bwd)


def forward(call: AttentionCall, inputs: Inputs) -> tuple[Array, Array, Array]:
    """Returns out [B,T,N,G], lse [B,T,N] and the largest logit [B,N]. Not differentiable."""
    # Not at import: Pallas takes longer to import than the rest of the package.
    from dovetail_kernels.attention import _mosaic_kernel, mosaic_masks

    k, v = inputs.k, inputs.v
    if call.masked:
        # Zero times NaN is NaN. So a non-finite value becomes zero and its key NaN, which reaches
        # only the logits of queries that see it.
        finite = jnp.isfinite(v).all(-1, keepdims=True)
        k, v = jnp.where(finite, k, jnp.nan), jnp.where(finite, v, 0)
    queries, keys = _cuts(call)
    out, lse, largest = _mosaic_kernel.forward(
        _filled(inputs.q, queries),
        _filled(k, keys),
        _filled(v, keys),
        masks=mosaic_masks.masks(call, inputs, queries, keys),
        sinks=None if inputs.sinks is None else inputs.sinks.astype(jnp.float32),
        scale=call.scale,
        soft_cap=call.soft_cap,
        work=_usual_work(call),
    )
    lse, largest = lse[:, :, : call.queries], largest[:, :, : call.queries]
    return out[:, : call.queries], lse.swapaxes(1, 2), largest.max(2)


def _filled(x: Array, cut: Cut) -> Array:
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % cut.size), (0, 0), (0, 0)))


MOSAIC = Implementation(name="mosaic", refuse=refuse, work=work, run=run)
