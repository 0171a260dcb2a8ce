# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""cuDNN's fused attention, through the public `jax.nn.dot_product_attention`.

It is the fastest implementation for the calls it supports, and it checks little. `jax.nn` has no
segments (`cudnn_packed` calls cuDNN itself) and passes odd lengths, which fail in the compiler or
on the device (marin-community/marin#6039). Calls not known to be right, forward and backward, are
therefore refused here, before tracing.

JAX traces a call of cuDNN only beside a GPU. Elsewhere, as for an absent device, an outline stands
for it: a call without code, with the same results, residuals and FLOPs. It can be traced, counted
and lowered; XLA refuses to compile it, by its name.
"""

import functools
import re
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dovetail_kernels.attention import blocked
from dovetail_kernels.attention.bounds import visible_pairs
from dovetail_kernels.attention.call import AttentionCall, Inputs
from dovetail_kernels.dispatch import Implementation, Work

# Before Hopper head_dim is at most 128. Unknown kinds of devices get the smaller bound.
HOPPER_OR_LATER = re.compile(r"\b(GH200|H100|H200|H800|H20|GB200|GB300|B100|B200|B300)\b")
# cuDNN's flash attention needs compute capability 8.0; these are older.
_BEFORE_AMPERE = re.compile(r"\b(V100|P100|T4|K80|M60|P4|P40|TITAN V|Quadro RTX)\b")
_OUTLINE = "dovetail_kernels_outline_of_cudnn_attention"


def refuse(call: AttentionCall) -> str | None:
    """Returns why cuDNN cannot give the documented answer, forward and backward, or None."""
    return (
        refuse_device(call) or blocked.refuse(call) or refuse_shapes(call) or refuse_options(call)
    )


def run(call: AttentionCall, inputs: Inputs) -> Float[Array, "b t n g"]:
    """Returns `out`. Keys and values beyond kv_lengths are zeroed, since 0 · NaN would spread.

    A row of length 0 gets one zeroed key, and its result is set to the documented 0.
    """
    (q, k, v), lengths = blocked.reverse(inputs[:3]), inputs.kv_lengths
    if lengths is not None:
        index = jnp.arange(call.keys, dtype=lengths.dtype)
        counts = (index[None, :] < lengths[:, None])[:, :, None, None]
        k, v = jnp.where(counts, k, 0), jnp.where(counts, v, 0)
        lengths = jnp.maximum(lengths, 1).astype(jnp.int32)
    if call.device.platform == "gpu" and not _beside_a_gpu():
        out: Any = _outline(call, q, k, v)
    else:
        out = jax.nn.dot_product_attention(
            q,
            k,
            v,
            scale=call.scale,
            is_causal=call.causal,
            key_value_seq_lengths=lengths,
            local_window_size=call.window,
            implementation="cudnn",
        )
    if inputs.kv_lengths is None:
        return out
    return jnp.where((inputs.kv_lengths > 0)[:, None, None, None], out, 0)


@functools.cache
def _beside_a_gpu() -> bool:
    """Tests whether this process has a GPU, and JAX therefore traces cuDNN's calls."""
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:  # JAX's answer for a platform without a backend
        return False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _outline(call: AttentionCall, q: Array, k: Array, v: Array) -> Array:
    """Returns `out` of a call without code, with the FLOPs of cuDNN's."""
    return _outline_fwd(call, q, k, v)[0]


def _outline_fwd(call: AttentionCall, q: Array, k: Array, v: Array) -> tuple[Array, tuple]:
    batch, queries, heads, _ = q.shape
    lse = jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
    results: Any = jax.ffi.ffi_call(_OUTLINE, (jax.ShapeDtypeStruct(q.shape, q.dtype), lse))(
        q, k, v, flops=np.int64(_work(call).flops)
    )
    out, lse = results
    return out, (q, k, v, lse, out)


def _outline_bwd(call: AttentionCall, kept: tuple, cotangent: Array) -> tuple[Array, ...]:
    """Counts the four products of the gradient, and one that computes the logits again."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in kept[:3]]
    flops = _work(call).flops
    gradients: Any = jax.ffi.ffi_call(f"{_OUTLINE}_gradient", shapes)(
        *kept, cotangent, flops=np.int64(2 * flops), recomputed_flops=np.int64(flops // 2)
    )
    return tuple(gradients)


_outline.defvjp(_outline_fwd, _outline_bwd)


def refuse_device(call: AttentionCall) -> str | None:
    """Returns why cuDNN's attention does not run on the call's device, or None."""
    kind = call.device.kind
    if call.device.platform != "gpu":
        return f"it runs on NVIDIA GPUs, not on {call.device.platform}"
    if "NVIDIA" not in kind or _BEFORE_AMPERE.search(kind):
        return f"it needs an NVIDIA GPU of compute capability 8.0 or later, not {kind}"
    return None


def refuse_shapes(call: AttentionCall) -> str | None:
    """Returns why cuDNN cannot take the call's dtype or shapes, or None."""
    largest = 256 if HOPPER_OR_LATER.search(call.device.kind) else 128
    if call.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it takes bfloat16 and float16, not {call.dtype}"
    if call.head_dim != call.value_dim:
        return f"jax.nn needs values as wide as keys, not {call.value_dim} and {call.head_dim}"
    if call.head_dim % 8 or call.head_dim > largest:
        return (
            f"on {call.device.kind} head_dim must be a multiple of 8 up to {largest}, not "
            f"{call.head_dim}"
        )
    if call.queries % 2 or call.keys % 2:
        return f"it fails on odd lengths, T={call.queries}, S={call.keys}"
    return None


def refuse_options(call: AttentionCall, taken: Collection[str] = ()) -> str | None:
    """Returns why cuDNN cannot take the call's options, or None. Names in `taken` are supported."""
    unknown = {
        "segment_ids": call.segments,
        "positions": call.positions,
        "soft_cap": call.soft_cap is not None,
        "sinks": call.sinks,
        "bias": call.bias is not None,
        "mask": call.mask is not None,
        "stats": call.stats,  # jax.nn rounds its log-sum-exp to the dtype of q
    }
    asked = [name for name, given in unknown.items() if given and name not in taken]
    if asked:
        return f"it has no {', '.join(asked)}"
    if call.window is not None and not call.causal:
        return "it has windows to the left only, so window needs causal=True"
    if call.kv_lengths and call.window is not None:
        return "its window together with kv_lengths is not known to be right"
    return None


def _work(call: AttentionCall) -> Work:
    """Counts as blocked attention, without its copies: tiles above the diagonal are skipped."""
    pairs = call.batch * call.heads * int(visible_pairs(call))
    read = call.batch * call.keys * call.kv_heads + call.batch * call.queries * call.heads
    width = call.head_dim + call.value_dim
    item = call.dtype.itemsize
    # The log-sum-exp, and with kv_lengths the keys and values with zeros beyond them.
    copies = call.batch * call.keys * call.kv_heads * width * item if call.kv_lengths else 0
    lse = 4 * call.batch * call.queries * call.heads
    return Work(flops=2 * pairs * width, bytes=read * width * item, peak_bytes=copies + lse)


CUDNN = Implementation(name="cudnn", refuse=refuse, work=_work, run=run)
