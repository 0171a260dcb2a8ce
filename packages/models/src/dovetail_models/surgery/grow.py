# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Growth: a larger decoder with the function of a smaller one.

New weights read the residual stream and do not write into it yet: new matrices that write are 0,
the others are drawn or copied. Gradients reach the writing matrices at once and the others after
one step (2308.06103; for depth, LLaMA Pro, 2401.02415). The alternative for width, units doubled
with halved outputs (Net2Net, 1511.05641), leaves twins with equal gradients. Growth of the residual
stream is not offered: the eps of its norms does not scale, so the result would be inexact.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import PRNGKeyArray

from dovetail_models.adapters.adapter import adapters
from dovetail_models.adapters.paths import select
from dovetail_models.adapters.place import build
from dovetail_models.build import outline
from dovetail_models.config.decoder import Attention, Config, Layer
from dovetail_models.describing.abbreviation import dotted
from dovetail_models.layers.experts import ExpertLinear
from dovetail_models.model.decoder import Decoder
from dovetail_models.placing.shard import WEIGHTS
from dovetail_models.surgery.layers import relayer
from dovetail_models.tables.table import listed


@jax.transfer_guard("allow")
def grow(
    model: Decoder,
    *,
    depth: int | None = None,
    mlp: int | None = None,
    heads: int | None = None,
    key: PRNGKeyArray | None = None,
) -> Decoder:
    """Returns a decoder with more layers, feed-forward units or heads, and the logits of `model`.

    With `mlp` and `heads`, new columns of kernels are drawn from normal(0, config.init_std), and
    other new weights are 0. The config follows. Parameters keep the mesh and the spec of the old
    ones. To stack layers without keeping the function, use `relayer`.

    Args:
        model: A decoder without adapters.
        depth: Number of layers. New layers are spread evenly; each copies its predecessor and adds
            nothing to the stream.
        mlp: Units of every feed-forward block (of every expert; a shared block stays).
        heads: Query heads of every layer. Key-value heads grow by the same factor.
        key: Key of the new weights. Required with `mlp` or `heads`, refused otherwise.

    Raises:
        ValueError: A size is not larger, the key-value heads of the new size are not whole, the key
            is missing or unused, depth grows with norms="post", a block has other parameters than
            its family's, the mesh does not divide a parameter, or the model has adapters.

    Example:

        >>> import jax
        >>> from dovetail_models import abstract, grow, llama
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32))
        >>> larger = grow(model, depth=4, mlp=64, key=jax.random.key(0))
        >>> len(larger.layers), larger.layers[0].mlp.up.kernel.shape
        (4, (16, 64))
    """
    _check(model, depth=depth, mlp=mlp, heads=heads, key=key)
    if key is not None:
        model = _wider(model, mlp=mlp, heads=heads, key=key)
    return model if depth is None else _deeper(model, depth)


def _deeper(model: Decoder, depth: int) -> Decoder:
    order = [i * len(model.layers) // depth for i in range(depth)]
    other = relayer(model, order)
    for i in range(1, depth):
        if order[i] == order[i - 1]:
            block = other.layers[i]
            nnx.update(block, nnx.map_state(_silent, nnx.state(block, WEIGHTS)))
    return other


def _silent(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
    """Returns the parameter, or zeros if it writes into the residual stream."""
    leaf = param.get_value()
    if param.get_metadata("out_sharding")[-1] != "embed":
        return param
    return param.replace(build(jnp.zeros_like, leaf, like=leaf))


def _wider(model: Decoder, *, mlp: int | None, heads: int | None, key: PRNGKeyArray) -> Decoder:
    layers = tuple(_layer(layer, mlp=mlp, heads=heads) for layer in model.config.layers)
    other = nnx.clone(model)
    other.config = dataclasses.replace(model.config, layers=layers)
    blocks = outline(other.config).layers
    for i, (new, old) in enumerate(zip(blocks, other.layers, strict=True)):
        _take_over(new, old)
        at = jax.random.fold_in(key, i)
        nnx.update(new, _filled(new, old, std=model.config.init_std, key=at))
    other.layers = blocks
    return other


def _layer(layer: Layer, *, mlp: int | None, heads: int | None) -> Layer:
    block, attention = layer.mlp, layer.attention
    if mlp is not None:
        block = dataclasses.replace(block, hidden=mlp)
    if heads is not None and isinstance(attention, Attention):
        kv_heads = attention.kv_heads * heads // attention.heads
        attention = dataclasses.replace(attention, heads=heads, kv_heads=kv_heads)
    elif heads is not None:
        attention = dataclasses.replace(attention, heads=heads)
    return dataclasses.replace(layer, attention=attention, mlp=block)


def _filled(new: nnx.Module, old: nnx.Module, *, std: float, key: PRNGKeyArray) -> nnx.State:
    """Returns the state of `new` with the parameters of `old` in the first corner of each."""
    states = [dict(nnx.to_flat_state(nnx.state(block, WEIGHTS))) for block in (new, old)]
    if states[0].keys() != states[1].keys():
        odd = sorted(map(dotted, states[0].keys() ^ states[1].keys()))
        raise ValueError(
            "A block must be as its family makes it, got one with other parameters: "
            f"{listed(odd, limit=5)}. Grow the model first, and change its blocks then."
        )
    filled = {}
    for n, (path, param) in enumerate(states[0].items()):
        leaf, shape = states[1][path].get_value(), param.shape
        # Kernels are [..., in, out]: new columns read, new rows would write.
        reads = path[-1] == "kernel" and shape[-1] != leaf.shape[-1]
        leaf_key = jax.random.fold_in(key, n)

        def larger(leaf, leaf_key, shape=shape, reads=reads):
            fresh = std * jax.random.normal(leaf_key, shape) if reads else jnp.zeros(shape)
            return jax.lax.dynamic_update_slice(fresh.astype(leaf.dtype), leaf, (0,) * leaf.ndim)

        grown = leaf if shape == leaf.shape else build(larger, leaf, leaf_key, like=leaf)
        filled[path] = param.replace(grown)
    return nnx.from_flat_state(filled)


def _take_over(new: nnx.Module, old: nnx.Module) -> None:
    """Copies settings such as dtype and precision from the layers of `old` to those of `new`."""
    before = select(old, "**")
    for path, layer in select(new, "**").items():
        was = before.get(path)
        if isinstance(layer, nnx.Linear) and isinstance(was, nnx.Linear):
            for name in ("dtype", "precision", "dot_general", "promote_dtype"):
                setattr(layer, name, getattr(was, name))
        if isinstance(layer, ExpertLinear) and isinstance(was, ExpertLinear):
            layer.ragged_dot = was.ragged_dot


def _check(
    model: Decoder,
    *,
    depth: int | None,
    mlp: int | None,
    heads: int | None,
    key: PRNGKeyArray | None,
) -> None:
    sizes = {"depth": depth, "mlp": mlp, "heads": heads}
    asked = {name: size for name, size in sizes.items() if size is not None}
    now = _sizes(model.config)
    if not asked or any(size <= now[name] for name, size in asked.items()):
        raise ValueError(
            f"grow makes at least one of depth, mlp and heads larger, and none smaller, got "
            f"{asked} for a model of {now}. Pass depth={now['depth'] + 1}, for example."
        )
    wider = mlp is not None or heads is not None
    if wider != (key is not None):
        raise ValueError(
            "New feed-forward units and heads are drawn with a key, and new layers without one, "
            f"got {asked} with key={'None' if key is None else 'a key'}. "
            f"{'Pass key=jax.random.key(0)' if wider else 'Leave key out'}."
        )
    for layer in model.config.layers:
        a = layer.attention
        if heads is not None and isinstance(a, Attention) and a.kv_heads * heads % a.heads:
            group = a.heads // a.kv_heads
            raise ValueError(
                f"heads must be a multiple of the {group} query heads of a key head, got "
                f"heads={heads}. Use heads={heads // group * group + group}."
            )
    if depth is not None and any(layer.norms == "post" for layer in model.config.layers):
        raise ValueError(
            "A new layer adds nothing only if its norms are not on the stream itself, got "
            "norms='post'. Stack layers with relayer, which changes the function."
        )
    paths = list(adapters(model))
    if paths:
        raise ValueError(
            f"A model grows with its adapters folded in, got adapters at {listed(paths, limit=5)}. "
            "Use lora.merge(model) first."
        )


def _sizes(config: Config) -> dict[str, int]:
    """Returns the depth, and the largest of the layers' sizes."""
    layers = config.layers
    return {
        "depth": len(layers),
        "mlp": max(layer.mlp.hidden for layer in layers),
        "heads": max(layer.attention.heads for layer in layers),
    }
