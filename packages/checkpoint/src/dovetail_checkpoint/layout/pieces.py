# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A leaf assembled from regions of other leaves: the result of a chain of rules.

Stacking, unstacking, splitting, fusing and transposing only map blocks of source leaves to places
in the result. A chain of any length is therefore a list of such blocks. It can be read in any
order, block by block, written to devices or to a file, and printed before a byte is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, kw_only=True)
class Piece:
    """`source[region]`, its axes in the order `axes`, cast, at `offset` of the result.

    Attributes:
        source: Name of the source leaf.
        region: Start and stop for each axis of the source.
        axes: For each axis of the result the axis of the source, or None for a new axis of extent
            1. A source axis that is not named has extent 1 in `region` and is dropped.
        offset: First index in the result.
        casts: Dtypes to convert the values to, in order.
    """

    source: str
    region: tuple[tuple[int, int], ...]
    axes: tuple[int | None, ...]
    offset: tuple[int, ...]
    casts: tuple[str, ...] = ()

    @property
    def extent(self) -> tuple[int, ...]:
        """The shape of the block in the result."""
        return tuple(
            1 if axis is None else self.region[axis][1] - self.region[axis][0] for axis in self.axes
        )

    @property
    def slices(self) -> tuple[slice, ...]:
        """The region as an index of the source."""
        return tuple(slice(start, stop) for start, stop in self.region)

    @property
    def place(self) -> tuple[slice, ...]:
        """The block as an index of the result."""
        return tuple(slice(o, o + n) for o, n in zip(self.offset, self.extent, strict=True))


@dataclass(frozen=True, kw_only=True)
class Built:
    """A leaf assembled from pieces.

    Attributes:
        shape: Its shape.
        dtype: Its dtype, as in the manifest.
        pieces: Blocks that cover each element once.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]


def whole(source: str, shape: tuple[int, ...], dtype: str) -> Built:
    """Returns the source leaf unchanged.

    Args:
        source: Its name.
        shape: Its shape.
        dtype: Its dtype, as in the manifest.
    """
    piece = Piece(
        source=source,
        region=tuple((0, n) for n in shape),
        axes=tuple(range(len(shape))),
        offset=(0,) * len(shape),
    )
    return Built(shape=shape, dtype=dtype, pieces=(piece,))


def stacked(leaves: Sequence[Built], axis: int) -> Built:
    """Stacks the leaves, all of one shape and dtype, along a new axis."""
    return joined([_expanded(leaf, axis) for leaf in leaves], axis)


def joined(leaves: Sequence[Built], axis: int) -> Built:
    """Joins the leaves, equal in dtype and in all other axes, along an axis."""
    pieces, end = [], 0
    for leaf in leaves:
        pieces += [replace(p, offset=_moved(p.offset, axis, end)) for p in leaf.pieces]
        end += leaf.shape[axis]
    shape = (*leaves[0].shape[:axis], end, *leaves[0].shape[axis + 1 :])
    return Built(shape=shape, dtype=leaves[0].dtype, pieces=tuple(pieces))


def sliced(leaf: Built, axis: int, start: int, stop: int) -> Built:
    """Cuts the leaf along an axis.

    Args:
        leaf: The leaf.
        axis: The axis.
        start: First index.
        stop: Index after the last.
    """
    pieces = []
    for piece in leaf.pieces:
        begin, end = piece.offset[axis], piece.offset[axis] + piece.extent[axis]
        low, high = max(begin, start), min(end, stop)
        if low < high:
            pieces.append(_cut(piece, axis, low - begin, high - begin, low - start))
    shape = (*leaf.shape[:axis], stop - start, *leaf.shape[axis + 1 :])
    return replace(leaf, shape=shape, pieces=tuple(pieces))


def unstacked(leaf: Built, axis: int) -> list[Built]:
    """Returns the slices of the leaf along an axis, without that axis."""
    return [_squeezed(sliced(leaf, axis, i, i + 1), axis) for i in range(leaf.shape[axis])]


def transposed(leaf: Built, axes: Sequence[int]) -> Built:
    """Reorders the axes, like numpy.transpose."""
    pieces = tuple(
        replace(p, axes=tuple(p.axes[a] for a in axes), offset=tuple(p.offset[a] for a in axes))
        for p in leaf.pieces
    )
    return replace(leaf, shape=tuple(leaf.shape[a] for a in axes), pieces=pieces)


def converted(leaf: Built, dtype: str) -> Built:
    """Converts the values to another dtype."""
    if dtype == leaf.dtype:
        return leaf
    pieces = tuple(replace(p, casts=(*p.casts, dtype)) for p in leaf.pieces)
    return replace(leaf, dtype=dtype, pieces=pieces)


def arranged(block: Any, piece: Piece) -> Any:
    """Arranges a block cut from the source for the result. Takes a NumPy or JAX array."""
    kept = [axis for axis in piece.axes if axis is not None]
    dropped = [axis for axis in range(len(piece.region)) if axis not in kept]
    block = block.transpose(kept + dropped).reshape(piece.extent)
    for dtype in piece.casts:
        block = block.astype(jnp.dtype(dtype))
    return block


def block(value: np.ndarray, piece: Piece) -> np.ndarray:
    """Returns the piece's block of the result, from the value of its source; a view if possible."""
    return arranged(value[(*piece.slices, ...)], piece)  # the dots: of a scalar an array too


def _expanded(leaf: Built, axis: int) -> Built:
    def insert(values: tuple, value: int | None) -> tuple:
        return (*values[:axis], value, *values[axis:])

    pieces = tuple(
        replace(p, axes=insert(p.axes, None), offset=insert(p.offset, 0)) for p in leaf.pieces
    )
    return replace(leaf, shape=insert(leaf.shape, 1), pieces=pieces)


def _squeezed(leaf: Built, axis: int) -> Built:
    def without(values: tuple) -> tuple:
        return (*values[:axis], *values[axis + 1 :])

    pieces = tuple(replace(p, axes=without(p.axes), offset=without(p.offset)) for p in leaf.pieces)
    return replace(leaf, shape=without(leaf.shape), pieces=pieces)


def _cut(piece: Piece, axis: int, low: int, high: int, offset: int) -> Piece:
    """Returns the piece's block from `low` to `high` along an axis of the result."""
    region, from_axis = list(piece.region), piece.axes[axis]
    if from_axis is not None:
        start = region[from_axis][0]
        region[from_axis] = (start + low, start + high)
    moved = (*piece.offset[:axis], offset, *piece.offset[axis + 1 :])
    return replace(piece, region=tuple(region), offset=moved)


def _moved(offset: tuple[int, ...], axis: int, by: int) -> tuple[int, ...]:
    return (*offset[:axis], offset[axis] + by, *offset[axis + 1 :])
