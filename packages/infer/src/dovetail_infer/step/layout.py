# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Discovers the cache of a decoder: an abstract call shows the keys and values of each layer.

The alternative, a table of model types, would have to know each family and each future one. An
attention that only records its arguments knows none of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import DTypeLike

from dovetail_infer.types import Decoder

_TOKENS = 8  # of the abstract call; any number


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerCache:
    """Cache of one layer.

    Attributes:
        group: Index of its page group, `Layout.windows`.
        heads: Key heads.
        width: Width of a key.
        value_width: Width of a value that is the head of the key. None: values are stored too.
        dtype: dtype of the pages.
    """

    group: int
    heads: int
    width: int
    value_width: int | None
    dtype: np.dtype

    def page_shape(self, page_size: int) -> tuple[int, int, int, int]:
        """Returns the shape of one page: entries, tokens, key heads, width."""
        return 2 if self.value_width is None else 1, page_size, self.heads, self.width

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return int(np.prod(self.page_shape(1))) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Cache of all layers, and other shapes of a decoder.

    Attributes:
        layers: Cache of each layer.
        windows: Window of each page group; layers of equal windows share page tables.
        vocab_size: Number of logits.
        experts: Number of layers with experts and experts of a token, for a decoder that tells
            them (`taps=("experts",)`); else None.
    """

    layers: tuple[LayerCache, ...]
    windows: tuple[int | None, ...]
    vocab_size: int
    experts: tuple[int, int] | None

    def token_bytes(self, group: int) -> int:
        """Returns the bytes of one token in the layers of a group."""
        return sum(layer.token_bytes for layer in self.layers if layer.group == group)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Entry:
    """A cache entry that only tells the layer: a pytree without arrays."""

    layer: int = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class _Call:
    """Arguments of an attention call."""

    q: Any
    k: Any
    v: Any
    window: int | None


def discover(
    model: Decoder,
    *,
    max_length: int,
    kv_dtype: DTypeLike | None = None,
    record_experts: bool = False,
    adapters: int = 0,
) -> Layout:
    """Returns the cache layout of a decoder, from an abstract call of `features` and `head`.

    Args:
        model: The decoder. No value of its parameters is read.
        max_length: Largest number of tokens of a request. The call is at the last position, so a
            decoder with fewer learned positions refuses it.
        kv_dtype: dtype of the pages. None: that of the keys, but float32 in place of bfloat16 on a
            CPU before jax 0.12, where XLA would rewrite the whole cache in each step.
        record_experts: Whether `features` must tell the experts of each token.
        adapters: Number of adapters that `features` must have.

    Raises:
        ValueError: A layer does not call the given attention exactly once, its keys and values
            have no paged form, the decoder refuses the last position, it has no experts to record
            or fewer adapters, or pages cannot have `kv_dtype`.
        TypeError: `features` lacks an argument.
    """
    if kv_dtype is not None and not jnp.issubdtype(kv_dtype, jnp.floating):
        raise ValueError(
            f"kv_dtype must be a float dtype, got kv_dtype={kv_dtype}. Use None for that of the "
            "model's keys."
        )
    options: dict[str, Any] = {}
    if record_experts:
        options["taps"] = ("experts",)
    if adapters:  # concrete ids, which the decoder checks
        options["adapter_ids"] = jnp.full((1, _TOKENS), adapters - 1, jnp.int32)
    _check_arguments(model, options)
    calls, logits, experts = _call_at_last(model, max_length, options)
    layers: list[LayerCache] = []
    windows: list[int | None] = []
    for i in range(len(model.layers)):
        call = _only_call(i, calls.get(i, []))
        if call.window not in windows:
            windows.append(call.window)
        layers.append(_layer_cache(i, call, windows.index(call.window), kv_dtype))
    return Layout(
        layers=tuple(layers),
        windows=tuple(windows),
        vocab_size=logits.shape[-1],
        experts=None if experts is None else (experts.shape[0], experts.shape[-1]),
    )


def _check_arguments(model: Any, options: dict[str, Any]) -> None:
    names = inspect.signature(model.features).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values()):
        return
    wanted = ["positions", "segment_ids", "attention", "kv", *options]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise TypeError(
            "features must take its attention and cache as arguments, got "
            f"{type(model).__name__}.features without {', '.join(missing)}. Add them, and call "
            "attention(q, k, v, causal=True, ..., kv=kv[layer]) in each layer."
        )


def _call_at_last(
    model: Any, max_length: int, options: dict[str, Any]
) -> tuple[dict[int, list[_Call]], Any, Any]:
    """Calls the decoder at the last positions, and at the first to tell why it refuses."""
    try:
        return _abstract_call(model, max_length - 1, options)
    except ValueError as error:
        try:
            _abstract_call(model, 0, options)
        except ValueError:
            raise error from None
        raise ValueError(
            f"max_length must be within the positions of the decoder, got max_length={max_length}. "
            f"Use a smaller max_length. The decoder says: {error}"
        ) from error


def _abstract_call(
    model: Any, position: int, options: dict[str, Any]
) -> tuple[dict[int, list[_Call]], Any, Any]:
    """Returns the attention calls by layer, and the shapes of logits and experts."""
    calls: dict[int, list[_Call]] = {}

    def attention(q: Any, k: Any, v: Any, *, kv: Any, window: int | None, **_: Any) -> Any:
        q_shape, k_shape, v_shape = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v))
        calls.setdefault(kv.layer, []).append(_Call(q_shape, k_shape, v_shape, window))
        return jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype), kv

    # Arrays made outside the abstract call keep their values inside it, so the decoder can check
    # them. In the compiled step it cannot, and a NumPy array would be traced.
    tokens = jnp.zeros((1, _TOKENS), jnp.int32)
    positions = jnp.full((1, _TOKENS), position, jnp.int32)
    segments = jnp.ones((1, _TOKENS), jnp.int32)
    graph, state = nnx.split(model)
    # Without shardings: no mesh takes part, and the decoder's checks see concrete positions.
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)

    def call(state: Any) -> Any:
        given = nnx.merge(graph, state)
        x, _, *tapped = given.features(
            tokens,
            positions=positions,
            segment_ids=segments,
            attention=attention,
            kv=[_Entry(i) for i in range(len(given.layers))],
            **options,
        )
        return given.head(x[0]), tapped[0]["experts"] if tapped else None

    logits, experts = jax.eval_shape(call, shapes)
    return calls, logits, experts


def _only_call(layer: int, calls: list[_Call]) -> _Call:
    if len(calls) != 1:
        raise ValueError(
            "Each layer must call the given attention once with its cache entry, got "
            f"{len(calls)} calls of layer {layer}. Give an attention of the layer's own a paged "
            "form: compute q [1, N, n, h], k [1, N, k, h] and v, and return "
            "attention(q, k, v, causal=True, ..., kv=kv)."
        )
    return calls[0]


def _layer_cache(layer: int, call: _Call, group: int, kv_dtype: DTypeLike | None) -> LayerCache:
    q, k, v = call.q.shape, call.k.shape, call.v.shape
    rows = (1, _TOKENS)
    fits = len(q) == len(k) == len(v) == 4 and q[:2] == k[:2] == v[:2] == rows
    if not fits or q[3] != k[3] or k[2] != v[2] or v[3] > k[3] or q[2] % k[2]:
        raise ValueError(
            "Attention needs q [1, N, n, h], k [1, N, k, h] and v [1, N, k, g] with g <= h, and n "
            f"a multiple of k, got q.shape={q}, k.shape={k} and v.shape={v} in layer {layer}. "
            "Reshape them, or pad k and q with zeros to the width of v."
        )
    return LayerCache(
        group=group,
        heads=k[2],
        width=k[3],
        value_width=v[3] if v[3] < k[3] else None,
        dtype=np.dtype(_page_dtype(call.k.dtype) if kv_dtype is None else kv_dtype),
    )


def _page_dtype(dtype: Any) -> Any:
    slow = jax.default_backend() == "cpu" and jax.__version_info__ < (0, 12)
    return jnp.float32 if slow and dtype == jnp.bfloat16 else dtype
