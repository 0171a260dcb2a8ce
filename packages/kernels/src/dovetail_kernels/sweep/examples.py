# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments for a recorded call, which has shapes and options but no values.

Values are normal numbers. Those that decide the time are typical ones: four documents a row, every
key valid, groups and requests of equal size.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.call import AttentionCall
from dovetail_kernels.dispatch import device
from dovetail_kernels.grouped.api import grouped_matmul
from dovetail_kernels.grouped.call import GroupedMatmulCall
from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs
from dovetail_kernels.loss.call import LossCall
from dovetail_kernels.measured import DamagedFile, RecordedCall
from dovetail_kernels.paged.api import paged_attention
from dovetail_kernels.paged.call import PagedCall
from dovetail_kernels.paged.pages import LARGEST, QuantizedPages, quantized
from dovetail_kernels.quantized.api import quantized_matmul
from dovetail_kernels.quantized.call import QuantizedMatmulCall
from dovetail_kernels.quantized.pack import pack_weights

_DOCUMENTS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A call with arguments.

    Attributes:
        operation: The operation.
        arrays: Arguments that are arrays, by name.
        options: All others.
        differentiable: Names of the arrays whose gradients are timed.
        terms: Terms of the longest sum behind a result.
        roundings: Roundings to the dtype on the way to a result.
    """

    operation: Callable[..., Any]
    arrays: Mapping[str, Any]
    options: Mapping[str, Any]
    differentiable: tuple[str, ...]
    terms: int
    roundings: float


def example(recorded: RecordedCall) -> Example:
    """Returns arguments for a call, on JAX's default device."""
    _, _, make = _OPERATIONS[recorded.operation]
    return make(recorded.call)


def read_calls(path: str | os.PathLike[str]) -> list[RecordedCall]:
    """Reads a file of `record_calls`.

    Raises:
        OSError: There is no such file.
        DamagedFile: It is none, or names what this version does not have.
    """
    try:
        listed = json.loads(Path(path).read_text(encoding="utf-8"))["calls"]
        return [_call(**each) for each in listed]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedFile(
            f"a file of calls must be as record_calls wrote it, got {os.fspath(path)!r} with "
            f"{type(error).__name__}: {error}. Record the calls again."
        ) from error


def _call(operation: str, call: Mapping[str, Any]) -> RecordedCall:
    _, kind, _ = _OPERATIONS[operation]
    types = {field.name: field.type for field in dataclasses.fields(kind)}
    values = {name: _value(types.get(name), value) for name, value in call.items()}
    return RecordedCall(operation=operation, call=kind(**values, device=device()))


def _value(kind: Any, value: Any) -> Any:
    if kind is np.dtype:
        return jnp.dtype(value)
    return tuple(value) if isinstance(value, list) else value


def _normal(seed: int, dtype: Any, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def _attention(call: AttentionCall) -> Example:
    rows = (call.batch, call.queries), (call.batch, call.keys)
    arrays: dict[str, Any] = {
        "q": _normal(0, call.dtype, *rows[0], call.heads, call.head_dim),
        "k": _normal(1, call.dtype, *rows[1], call.kv_heads, call.head_dim),
        "v": _normal(2, call.dtype, *rows[1], call.kv_heads, call.value_dim),
    }
    if call.sinks:
        arrays["sinks"] = _normal(3, call.dtype, call.heads)
    if call.bias is not None:
        arrays["bias"] = _normal(4, call.dtype, *call.bias)
    differentiable = tuple(arrays)
    if call.mask is not None:
        arrays["mask"] = _normal(5, jnp.float32, *call.mask) > 0
    index = [jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (b, n)) for b, n in rows]
    if call.segments:
        ids = tuple(i * _DOCUMENTS // i.shape[1] for i in index)
        arrays["segment_ids"] = ids[0] if call.queries == call.keys else ids
    if call.positions:
        beside = index[0] + call.keys - call.queries, index[1]
        arrays["positions"] = index[0] if call.queries == call.keys else beside
    if call.kv_lengths:
        arrays["kv_lengths"] = jnp.full(call.batch, call.keys, jnp.int32)
    names = ("causal", "window", "soft_cap", "scale", "stats")
    # The gradient of a bias is a sum over its axes of size 1, of rows whose errors are a walk.
    sizes = call.batch, call.heads, call.queries, call.keys
    bias = sizes if call.bias is None else call.bias
    summed = [n // own for n, own in zip(sizes, bias, strict=True)]
    return Example(
        operation=attention,
        arrays=arrays,
        options={name: getattr(call, name) for name in names},
        differentiable=differentiable,
        terms=call.head_dim + max(call.queries, call.keys, math.prod(summed)),
        roundings=4.0 * math.prod(summed[:3]) ** 0.5,
    )


def _loss(call: LossCall) -> Example:
    shape = (call.width, call.vocabulary)
    arrays = {
        "x": _normal(0, call.dtype, call.tokens, call.width),
        "w": _normal(1, call.dtype, *(shape if call.vocab_axis == 1 else shape[::-1])),
    }
    if call.bias:
        arrays["bias"] = _normal(2, call.dtype, call.vocabulary)
    differentiable = tuple(arrays)
    arrays["labels"] = jax.random.randint(jax.random.key(3), (call.tokens,), 0, call.vocabulary)
    own = {
        "linear_cross_entropy": (linear_cross_entropy, ("smoothing", "z_loss")),
        "linear_logprobs": (linear_logprobs, ("temperature",)),
    }
    operation, names = own[call.operation]
    names = (*names, "vocab_axis", "soft_cap", "budget")
    return Example(
        operation=operation,
        arrays=arrays,
        options={name: getattr(call, name) for name in names},
        differentiable=differentiable,
        terms=call.tokens + call.width + 16,
        roundings=2.0,
    )


def _grouped(call: GroupedMatmulCall) -> Example:
    starts = jnp.arange(call.count + 1) * call.rows // call.count
    return Example(
        operation=grouped_matmul,
        arrays={
            "x": _normal(0, call.dtype, call.rows, call.inner),
            "w": _normal(1, call.dtype, call.count, call.inner, call.outer),
            "sizes": jnp.diff(starts).astype(jnp.int32),
        },
        options={},
        differentiable=("x", "w"),
        terms=max(call.rows // call.count, call.inner, call.outer) + 1,
        roundings=2.0,
    )


def _quantized(call: QuantizedMatmulCall) -> Example:
    w = _normal(1, jnp.float32, call.inputs, call.outputs)
    whole = {} if call.bits == 16 else {"group_size": call.inputs // call.groups}
    packed = pack_weights(w, bits=call.bits, symmetric=not call.asymmetric, **whole)
    return Example(
        operation=quantized_matmul,
        arrays={"x": _normal(0, call.dtype, call.rows, call.inputs), "w": packed},
        options={"activations": call.activations},
        differentiable=(),  # one gradient serves all implementations
        terms=call.inputs + 8,
        roundings=1.0,
    )


def _paged(call: PagedCall) -> Example:
    entries = 2 if call.value_width is None else 1
    shape = (call.pages, entries, call.page_size, call.kv_heads, call.width)
    if call.pages_dtype in LARGEST:
        codes, scales = quantized(_normal(1, jnp.float32, *shape), call.pages_dtype)
        pages: Any = QuantizedPages(codes=codes, scales=scales)
    else:
        pages = _normal(1, call.pages_dtype, *shape)
    ids = jnp.arange(call.requests * call.columns, dtype=jnp.int32) % call.pages
    arrays = {
        "q": _normal(0, call.dtype, call.queries, call.heads, call.width),
        "pages": pages,
        "page_table": ids.reshape(call.requests, call.columns),
        "kv_lengths": jnp.full(call.requests, call.keys, jnp.int32),
    }
    if call.sinks:
        arrays["sinks"] = _normal(2, call.dtype, call.heads)
    names = ("window", "soft_cap", "scale", "value_width", "lse", "invariant")
    options = {name: getattr(call, name) for name in names}
    starts = np.arange(call.requests + 1, dtype=np.int32) * call.queries // call.requests
    if call.single:
        options["q_starts"] = starts  # its values are known while JAX traces
    else:
        arrays["q_starts"] = jnp.asarray(starts)
    return Example(
        operation=paged_attention,
        arrays=arrays,
        options=options,
        differentiable=(),
        terms=call.width + call.keys,
        roundings=2.0,
    )


_OPERATIONS: Mapping[str, tuple[Callable[..., Any], type[Any], Callable[[Any], Example]]] = {
    "attention": (attention, AttentionCall, _attention),
    "grouped_matmul": (grouped_matmul, GroupedMatmulCall, _grouped),
    "linear_cross_entropy": (linear_cross_entropy, LossCall, _loss),
    "linear_logprobs": (linear_logprobs, LossCall, _loss),
    "paged_attention": (paged_attention, PagedCall, _paged),
    "quantized_matmul": (quantized_matmul, QuantizedMatmulCall, _quantized),
}
OPERATIONS = {name: operation for name, (operation, _, _) in _OPERATIONS.items()}
