# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary, the head and the dtype of a model changed."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import DTypeLike, PRNGKeyArray

from dovetail_models.decoder import Decoder
from dovetail_models.init import outline
from dovetail_models.surgery.adapter import plain
from dovetail_models.surgery.place import Leaf, build
from dovetail_models.surgery.replace import Model


def resize_vocab(
    model: Decoder,
    size: int,
    *,
    init: Literal["mean", "normal"] = "mean",
    key: PRNGKeyArray | None = None,
    allow_shrink: bool = False,
) -> Decoder:
    """A new decoder of `size` tokens: rows added at the end of the embedding, or cut off there.

    A new row is the mean of the old ones ("mean"), or drawn from normal(0, config.init_std) with
    `key` ("normal"). A head of its own is treated alike. The logits of the old tokens change by
    rounding at most. Rows keep the mesh and the spec of the table.

    Raises ValueError for fewer tokens without `allow_shrink` (their logits and ids are gone), a key
    that is missing or unused, an adapter on the head, and a size that the mesh does not divide.
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


def untie(model: Decoder) -> Decoder:
    """A new decoder with a head of its own, equal to the embedding.

    The logits are sums of the same products, but over a matrix that is stored transposed, which a
    backend may add up in another order.

    Raises ValueError for a decoder that is not tied.
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
    # Where Flax saw None it takes a module only if told that it is data.
    other.lm_head = nnx.data(head)
    return other


def cast(model: Model, dtype: DTypeLike) -> Model:
    """A new model whose every floating-point parameter, adapters too, has this dtype.

    The computation follows: activations have the dtype of the embedding. Raises ValueError for a
    dtype that is not floating-point.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"Parameters are cast to a floating-point dtype, got dtype={jnp.dtype(dtype).name}. "
            "Use jnp.bfloat16 or jnp.float32; quantization is another library's."
        )

    def change(_: Any, param: nnx.Variable) -> nnx.Variable:
        leaf = param.get_value()
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == dtype:
            return param
        return param.replace(build(lambda x: x.astype(dtype), leaf, like=leaf))

    other = nnx.clone(model)
    nnx.update(other, nnx.map_state(change, nnx.state(other)))
    return other


def _resize(
    param: nnx.Variable, size: int, *, axis: int, key: PRNGKeyArray | None, std: float
) -> None:
    """Cut or extend one axis in place."""

    def resized(old: jax.Array) -> jax.Array:
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
    param.set_value(build(resized, leaf, like=leaf))
