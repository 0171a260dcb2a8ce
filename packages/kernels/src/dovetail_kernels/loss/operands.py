# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The arrays, statistics and gradients of a loss, tile by tile (rows.py)."""

import dataclasses
from typing import NamedTuple

from jax import Array

from dovetail_kernels.loss.tiles import Tiles


class RowStats(NamedTuple):
    """The four numbers of each token. None: not requested.

    Attributes:
        lse: Log-sum-exp of the logits.
        label: Logit of the label.
        total: Sum of the logits.
        mean: Mean of the logits under softmax.
    """

    lse: Array
    label: Array
    total: Array | None
    mean: Array | None


class Operands(NamedTuple):
    """The arrays of a loss.

    Attributes:
        x: Inputs of the head.
        w: Weights of the head.
        bias: Added to the logits, or None.
        labels: Token ids, int32.
        read: Tokens to read. Any other token is set to zero and may hold anything.
    """

    x: Array
    w: Array
    bias: Array | None
    labels: Array
    read: Array


class Gradients(NamedTuple):
    """Gradients by the operands. None: not wanted.

    Attributes:
        x: Gradient by x.
        w: Gradient by w.
        bias: Gradient by bias.
    """

    x: Array | None
    w: Array | None
    bias: Array | None


class Wanted(NamedTuple):
    """Flags of the requested gradients.

    Attributes:
        x: Gradient by x.
        w: Gradient by w.
        bias: Gradient by bias.
    """

    x: bool
    w: bool
    bias: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """The head z = soft_cap(x w + bias) / temperature, its tiles and the requested `RowStats`.

    Attributes:
        vocab_axis: Axis of w for the vocabulary.
        soft_cap: Bound of the logits, or None.
        temperature: Divisor of the logits.
        total: Whether `RowStats.total` is requested.
        mean: Whether `RowStats.mean` is requested.
        tiles: Sizes of the tiles.
        names: Mesh axes over which the vocabulary of w is split (shards.py).
    """

    vocab_axis: int
    soft_cap: float | None
    temperature: float
    total: bool
    mean: bool
    tiles: Tiles
    names: tuple[str, ...] = ()
