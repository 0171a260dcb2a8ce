# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the arrays given beside tokens, and positions of packed documents.

Shapes and dtypes are always checked, values only if they are concrete. Under jit `Embed` gives NaN
instead.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dovetail_models.config.layer import Experts
from dovetail_models.config.rope import Rope
from dovetail_models.layers.linear import span


def check_types(token_types: Array, *, count: int) -> None:
    """Raises ValueError if a token type is not below `count`."""
    low, high = span(token_types)
    if low < 0 or high >= count:
        raise ValueError(
            f"Every token type must be in [0, token_types), got types from {low} to {high} with "
            f"token_types={count}. Use the types that the tokenizer gives."
        )


def check_positions(positions: Array | np.ndarray, *, max_length: int) -> None:
    """Raises ValueError if a position has no learned vector."""
    low, high = span(positions)
    if low < 0 or high >= max_length:
        wrong = low if low < 0 else high
        raise ValueError(
            "Every position must have a learned vector, got a position of "
            f"{wrong} with max_length={max_length}. Pass a shorter sequence."
        )


def check_cached(positions: Array | np.ndarray, ropes: Sequence[Rope | None]) -> None:
    """Raises ValueError if a cache would hold keys that a longer sequence rotates otherwise."""
    limits = [rope.limit for rope in ropes if rope is not None and rope.limit is not None]
    _, high = span(positions)
    if limits and high >= min(limits):
        raise ValueError(
            "Over a cache every position must be below the original length of a RoPE whose "
            f"frequencies depend on the length of the sequence, got a position of {high} with "
            f"original_length={min(limits)}. Pass a shorter sequence, or whole rows without kv."
        )


def check_adapter_ids(
    adapter_ids: Array | np.ndarray, *, count: int, rows: tuple[int, int]
) -> None:
    """Checks the adapter of each row or token.

    Args:
        adapter_ids: Ids [B] or [B, T]; -1 is none.
        count: Number of adapters of the model.
        rows: (B, T).

    Raises:
        TypeError: The ids are not integers.
        ValueError: The model has no stack, the shape is another one, or an id names no adapter.
    """
    if not count:
        raise ValueError(
            f"adapter_ids need a model of lora.stack, got adapter_ids.shape={adapter_ids.shape} "
            "for one without. Stack the adapters first, or leave adapter_ids out."
        )
    if not jnp.issubdtype(adapter_ids.dtype, jnp.integer):
        raise TypeError(
            f"adapter_ids must be integers, got dtype={adapter_ids.dtype}. Use the places in the "
            "list that lora.stack was given, and -1 for none."
        )
    if adapter_ids.shape not in (rows[:1], rows):
        raise ValueError(
            f"adapter_ids must be [B] or [B, T], got shape={adapter_ids.shape} for "
            f"B={rows[0]}, T={rows[1]}. Pass one id per row, or one per token of packed rows."
        )
    low, high = span(adapter_ids)
    if low < -1 or high >= count:
        raise ValueError(
            f"Every adapter id must be in [-1, adapters), got ids from {low} to {high} with "
            f"adapters={count}. Use -1 for rows without an adapter."
        )


def check_expert_ids(
    expert_ids: Array | np.ndarray, *, mixtures: Sequence[Experts], rows: tuple[int, int]
) -> None:
    """Checks the experts of each token.

    Args:
        expert_ids: Indices [L, B, T, K].
        mixtures: The L layers with experts.
        rows: (B, T).

    Raises:
        TypeError: The ids are not integers.
        ValueError: The model has no experts, the shape is another one, or an id names no expert.
    """
    if not mixtures:
        raise ValueError(
            f"expert_ids need a model with experts, got expert_ids.shape={expert_ids.shape} for "
            "one without. Leave expert_ids out."
        )
    if not jnp.issubdtype(expert_ids.dtype, jnp.integer):
        raise TypeError(
            f"expert_ids must be integers, got dtype={expert_ids.dtype}. Use those that "
            "features(..., taps=('experts',)) returns."
        )
    wanted = (len(mixtures), *rows, mixtures[0].top_k)
    if expert_ids.shape != wanted:
        raise ValueError(
            "expert_ids must be [layers with experts, B, T, experts per token], got shape="
            f"{expert_ids.shape} for {wanted}. Use those that features(..., taps=('experts',)) "
            "returns."
        )
    count = min(mixture.count for mixture in mixtures)
    low, high = span(expert_ids)
    if low < 0 or high >= count:
        raise ValueError(
            f"Every expert id must be in [0, experts), got ids from {low} to {high} with "
            f"experts={count}. Fill the places of padding with any expert, such as 0."
        )


def restart(segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns positions from 0 in each run of equal segment ids."""
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1]), segment_ids.shape)
    starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)
