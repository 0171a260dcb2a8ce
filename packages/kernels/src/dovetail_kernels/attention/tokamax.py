# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention by Tokamax: its Mosaic kernels on Hopper and Blackwell GPUs, its chunked XLA on a CPU.

An extra (Python 3.12 or later), imported by its first call. We always name one implementation:
Tokamax's own choice can silently fall back to one with the full [T, S] matrix. Written from the
source of Tokamax 0.0.17; the GPU kernels were not executed.
"""

import contextlib
import functools
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dovetail_kernels.attention.blocked import once, reverse
from dovetail_kernels.attention.blocked import refuse as refuse_symbolic
from dovetail_kernels.attention.call import AttentionCall, Inputs
from dovetail_kernels.dispatch import Implementation, Work

# JAX's names of GPUs of compute capability 9.0 and 10.x. Tokamax has a backward for these.
_KINDS = re.compile(r"\b(G?H(100|200|20|800)|G?B(100|200|300))\b")

_CHUNK = 512  # queries and keys of a chunk in Tokamax's XLA


def run(call: AttentionCall, inputs: Inputs) -> Array:
    """Computes `attention` by Tokamax."""
    return _attend(call, reverse(inputs))


def refuse(call: AttentionCall) -> str | None:
    """Returns why Tokamax cannot give the documented answer to a call, or None."""
    return _refuse_device(call) or refuse_symbolic(call) or _refuse_options(call)


def _refuse_device(call: AttentionCall) -> str | None:
    platform, kind = call.device.platform, call.device.kind
    if importlib.util.find_spec("tokamax") is None:
        return "is not installed. Use pip install 'dovetail-kernels[tokamax]' on Python >= 3.12"
    if platform not in ("cpu", "gpu"):
        return f"was compared with the reference on CPU only, got platform={platform!r}"
    if platform == "gpu" and not _KINDS.search(kind):
        return f"has kernels with a backward for Hopper and Blackwell GPUs, got kind={kind!r}"
    # On a CPU other dtypes depend on XLA, or on the program's permission to promote dtypes.
    dtypes = (jnp.bfloat16, jnp.float16) if platform == "gpu" else (jnp.float32,)
    if call.dtype not in dtypes:
        names = ", ".join(jnp.dtype(dtype).name for dtype in dtypes)
        return f"multiplies in {names} on {platform}, got dtype={call.dtype}"
    return None


def _refuse_options(call: AttentionCall) -> str | None:
    if call.segments:
        return "takes segment_ids only as a [T, S] mask"
    if call.positions:
        return "takes positions only as a [T, S] mask"
    if call.bias is not None:
        return "passes bias to kernels that differ in it, and is not compared with the reference"
    if call.mask is not None:
        return "averages hidden values where mask leaves a query nothing to see"
    if call.sinks:
        return "has no sinks"
    if call.stats:
        return "does not return stats"
    if call.kv_lengths and call.window is not None:
        return "averages hidden values where window and kv_lengths leave a query nothing to see"
    if call.soft_cap is not None and call.device.platform == "gpu":
        return f"forms tanh to 11 bits on GPUs, got soft_cap={call.soft_cap}"
    return None


def work(call: AttentionCall) -> Work:
    """Counts all pairs of a query and a key: the kernels skip blocks by rules of their own."""
    width = call.head_dim + call.value_dim
    rows = call.batch * (call.queries * call.heads + call.keys * call.kv_heads)
    pairs = call.batch * call.heads * call.queries * call.keys
    item = call.dtype.itemsize
    # With kv_lengths the keys and values with zeros beyond them; then statistics, or chunks.
    copies = call.batch * call.keys * call.kv_heads * width * item if call.kv_lengths else 0
    copies += 4 * call.batch * call.queries * call.heads
    if call.device.platform == "cpu":
        copies += _chunk_bytes(call)
    return Work(flops=2 * pairs * width, bytes=rows * width * item, peak_bytes=copies)


def _chunk_bytes(call: AttentionCall) -> int:
    """Returns the bytes of Tokamax's chunked XLA, as measured: logits and weights of a chunk.

    Beside them are about six arrays of q's size. A remainder takes all pairs at once.
    """
    sides = [min(_CHUNK, length) for length in (call.queries, call.keys)]
    whole = call.queries % sides[0] == 0 and call.keys % sides[1] == 0
    pairs = sides[0] * sides[1] if whole else call.queries * call.keys
    arrays = 6 * call.queries * call.head_dim if whole else 0
    return 4 * call.batch * call.heads * (2 * pairs + arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: AttentionCall, inputs: Inputs) -> Array:
    with _on_its_terms():
        return _forward(call, inputs.kv_lengths, inputs.q, inputs.k, inputs.v)


def _attend_fwd(call: AttentionCall, inputs: Inputs) -> tuple[Array, Any]:
    inputs = once(inputs)
    forward = functools.partial(_forward, call, inputs.kv_lengths)
    with _on_its_terms():
        return jax.vjp(forward, inputs.q, inputs.k, inputs.v)


def _attend_bwd(call: AttentionCall, pull: Any, cotangent: Array) -> tuple[Inputs]:
    pull, cotangent = once((pull, cotangent))
    with _on_its_terms():
        return (Inputs(*pull(cotangent)),)


_attend.defvjp(_attend_fwd, _attend_bwd)


def _forward(call: AttentionCall, kv_lengths: Array | None, q: Array, k: Array, v: Array) -> Array:
    import tokamax  # pyright: ignore[reportMissingImports]  # an extra

    if kv_lengths is not None:
        # The kernels mask logits but multiply values by weights of zero: 0 · NaN is NaN.
        counts = (jnp.arange(call.keys) < kv_lengths[:, None])[:, :, None, None]
        k, v = jnp.where(counts, k, 0), jnp.where(counts, v, 0)
    return tokamax.dot_product_attention(
        q,
        k,
        v,
        scale=call.scale,
        is_causal=call.causal,
        # Kernels disagree on empty rows. So a row without keys sees the first, which is zero, and
        # returns zero.
        key_value_seq_lengths=None if kv_lengths is None else jnp.maximum(kv_lengths, 1),
        local_window_size=call.window,
        logits_soft_cap=call.soft_cap,
        implementation="xla_chunked" if call.device.platform == "cpu" else "mosaic",
    )


@contextlib.contextmanager
def _on_its_terms() -> Iterator[None]:
    """Sets the options needed by Tokamax's tracing, and restores the program's afterwards.

    Tokamax promotes dtypes and ranks, and a program may forbid this. It also reads options from
    absl's flags, and parses them from argv if the program has not. The program's argv has a meaning
    unknown to Tokamax, so flags count as parsed meanwhile.
    """
    from absl import flags

    mine = not flags.FLAGS.is_parsed()
    if mine:
        flags.FLAGS.mark_as_parsed()
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield
    finally:
        if mine:
            flags.FLAGS.unparse_flags()


TOKAMAX = Implementation(name="tokamax", refuse=refuse, work=work, run=run)
