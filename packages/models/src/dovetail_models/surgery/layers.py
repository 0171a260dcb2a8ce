# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Layers of a model dropped, repeated and put into another order."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_models.decoder import Decoder
from dovetail_models.encoder import Encoder
from dovetail_models.surgery.place import build

Layered = TypeVar("Layered", bound=Decoder | Encoder)


def relayer(model: Layered, order: Sequence[int]) -> Layered:
    """A new decoder or encoder whose layer i is layer `order[i]`; `config.layers` follows.

    A layer that comes twice becomes two: they start equal, and training one does not train the
    other. The first copy shares its arrays with `model`; the others have their own, so that the new
    model can be donated. Stacking a model on itself (`[0, 1, 0, 1]`) is a start for training a
    deeper one; `grow` deepens without a change of the function.

    Raises ValueError for an empty order and for an index that is no layer.

    >>> shallow = relayer(model, [0, 1, 3])
    """
    depth = len(model.layers)
    wrong = [i for i in order if not 0 <= i < depth]
    if wrong or not order:
        raise ValueError(
            f"order must name layers 0 to {depth - 1}, at least one, got order={list(order)}. "
            f"Use order={list(range(depth))} for what the model is now."
        )
    other = nnx.clone(model)
    seen: set[int] = set()
    blocks = []
    for i in order:
        blocks.append(copy(other.layers[i]) if i in seen else other.layers[i])
        seen.add(i)
    other.layers = nnx.List(blocks)
    layers = tuple(model.config.layers[i] for i in order)
    config: Any = dataclasses.replace(model.config, layers=layers)
    other.config = config
    return other


def copy(block: nnx.Module) -> nnx.Module:
    """The block around copies of its arrays, where those lie."""
    graph, state = nnx.split(block)
    return nnx.merge(graph, jax.tree.map(lambda x: build(jnp.copy, x, like=x), state))
