# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of a model's vocabulary, head and dtype."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import DTypeLike, PRNGKeyArray

from dovetail_models import _elsewhere
from dovetail_models.adapters.adapter import plain
from dovetail_models.adapters.place import Leaf, build
from dovetail_models.build import outline
from dovetail_models.model.decoder import Decoder
from dovetail_models.placing.shard import keeps_dtype
from dovetail_models.surgery.replace import Model


@jax.transfer_guard("allow")
@_elsewhere.call
def resize_vocab(
    model: Decoder,
    size: int,
    *,
    init: Literal["mean", "normal"] = "mean",
    key: PRNGKeyArray | None = None,
    allow_shrink: bool = False,
) -> Decoder:
    """Returns a decoder of `size` tokens: rows are added at the end of the embedding, or cut off
    there.

    An untied head is changed in the same way. The logits of the old tokens change by rounding at
    most. Rows keep the mesh and the spec of the table.

    Args:
        model: The decoder.
        size: Number of tokens.
        init: "mean": a new row is the mean of the old ones. "normal": it is drawn from normal(0,
            config.init_std).
        key: Key for "normal". None for "mean".
        allow_shrink: Allow a smaller size; the logits and ids of the last tokens are lost.

    Raises:
        ValueError: The size is smaller without `allow_shrink`, the key is missing or unused, the
            head has an adapter, or the mesh does not divide the size.

    Example:

        >>> from dovetail_models import abstract, llama, resize_vocab
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32))
        >>> resize_vocab(model, 72).embed.embedding.shape
        (72, 16)
    """
    old = model.config.vocab_size
    if size < 1 or (size < old and not allow_shrink):
        raise ValueError(
            f"The vocabulary must keep its {old} tokens, got size={size}. Pass allow_shrink=True "
            f"with a size of at least 1 to cut the last {old - size}, or a size above {old}."
        )
    if init not in ("mean", "normal") or (key is None) == (init == "normal"):
        raise ValueError(
            f"init='normal' draws with a key and init='mean' takes none, got init={init!r}, "
            f"key={'None' if key is None else 'a key'}. Pass init='normal', key=jax.random.key(0), "
            "or leave both out."
        )
    other = nnx.clone(model)
    keys = (None, None) if key is None else tuple(jax.random.split(key))
    std = model.config.init_std
    _resize(other.embed.embedding, size, axis=0, key=keys[0], std=std)
    head = other.lm_head
    if head is not None:
        linear = plain("lm_head", head)
        _resize(linear.kernel, size, axis=1, key=keys[1], std=std)
        if linear.bias is not None:
            _resize(linear.bias, size, axis=0, key=None, std=std)
        linear.out_features = size
    other.config = dataclasses.replace(model.config, vocab_size=size)
    return other


@jax.transfer_guard("allow")
def untie(model: Decoder) -> Decoder:
    """Returns a decoder with a head of its own, equal to the embedding.

    The logits are sums of the same products. The head is stored transposed, so a backend may add
    them in another order.

    Raises:
        ValueError: The decoder is not tied.

    Example:

        >>> from dovetail_models import abstract, llama, untie
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32, tie=True))
        >>> untie(model).lm_head.kernel.shape
        (16, 64)
    """
    if not model.config.tie:
        raise ValueError(
            "untie takes a decoder whose head is its embedding, got config.tie=False. "
            "Use the model as it is."
        )
    other = nnx.clone(model)
    other.config = dataclasses.replace(model.config, tie=False)
    head = outline(other.config).lm_head
    assert head is not None
    table = model.embed.embedding.get_value()
    head.kernel = head.kernel.replace(build(jnp.transpose, table, like=table, dims=(1, 0)))
    # An attribute that was None takes a module only if marked as data.
    other.lm_head = nnx.data(head)
    return other


@_elsewhere.call
def cast(model: Model, dtype: DTypeLike) -> Model:
    """Returns a model whose floating-point parameters, adapters included, have this dtype.

    Activations follow: they have the dtype of the embedding. Values that steer a selection, marked
    with `keep_dtype`, stay as they are.

    Raises:
        ValueError: The dtype is not floating-point.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_models import abstract, cast, llama
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32))
        >>> cast(model, jnp.bfloat16).embed.embedding.dtype
        dtype(bfloat16)
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"Parameters are cast to a floating-point dtype, got dtype={jnp.dtype(dtype).name}. "
            "Use jnp.bfloat16 or jnp.float32; quantization is another library's."
        )

    def change(_: Any, param: nnx.Variable) -> nnx.Variable:
        leaf = param.get_value()
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        if not is_float or leaf.dtype == dtype or keeps_dtype(param):
            return param
        return param.replace(build(lambda x: x.astype(dtype), leaf, like=leaf))

    other = nnx.clone(model)
    nnx.update(other, nnx.map_state(change, nnx.state(other)))
    return other


def _resize(
    param: nnx.Variable, size: int, *, axis: int, key: PRNGKeyArray | None, std: float
) -> None:
    """Cuts or extends one axis in place."""

    def resized(old: jax.Array, key: PRNGKeyArray | None) -> jax.Array:
        more = size - old.shape[axis]
        if more <= 0:
            return jax.lax.slice_in_dim(old, 0, size, axis=axis)
        shape = (*old.shape[:axis], more, *old.shape[axis + 1 :])
        if key is None:
            mean = jnp.mean(old.astype(jnp.float32), axis=axis, keepdims=True)
            new = jnp.broadcast_to(mean, shape)
        else:
            new = std * jax.random.normal(key, shape)
        return jnp.concatenate([old, new.astype(old.dtype)], axis=axis)

    leaf: Leaf = param.get_value()
    param.set_value(build(resized, leaf, key, like=leaf))
