# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Selection, repetition and reordering of a model's layers."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_models import _elsewhere
from dovetail_models.adapters.place import build
from dovetail_models.model.decoder import Decoder
from dovetail_models.model.encoder import Encoder

Layered = TypeVar("Layered", bound=Decoder | Encoder)


@_elsewhere.call
def relayer(model: Layered, order: Sequence[int]) -> Layered:
    """Returns a decoder or encoder whose layer i is layer `order[i]`. `config.layers` follows.

    A repeated layer becomes independent copies: they start equal and train apart. The first copy
    shares its arrays with `model`; the others have their own, so the new model can be donated.
    Stacking a model on itself (`[0, 1, 0, 1]`) is a start for training a deeper one. `grow` deepens
    without changing the function.

    Raises:
        ValueError: The order is empty or holds an index out of range.

    Example:

        >>> from dovetail_models import abstract, llama, relayer
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=4, heads=2, mlp=32))
        >>> len(relayer(model, [0, 1, 3]).layers)
        3
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
    """Returns the block with copies of its arrays, on the same devices."""
    graph, state = nnx.split(block)
    return nnx.merge(graph, jax.tree.map(lambda x: build(jnp.copy, x, like=x), state))
