# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Operations between a tensor of a file and a leaf of the model, as one view for both directions.

`op.view(tensor)` is the leaf inside the tensor, without a copy. `op.view(tensor)[index]` reads the
slice `index` of the leaf, so a device reads its own bytes of a mapped file. `op.view(tensor)[...] =
leaf` writes the leaf, so leaves in a common tensor are written one by one.

Except for `Conv` and `Lead`, operations act on the last two axes only. They therefore also hold for
each entry of a stack of tensors.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np

Shape = tuple[int, ...]


@runtime_checkable
class Op(Protocol):
    """The place of a leaf in a tensor."""

    def shape(self, leaf: Shape) -> Shape:
        """Returns the shape of the tensor for a leaf of this shape."""
        ...

    def view(self, tensor: np.ndarray) -> np.ndarray:
        """Returns the leaf as a view of a tensor of `shape(leaf.shape)`."""
        ...


@dataclasses.dataclass(frozen=True)
class Identity:
    """The leaf is the tensor."""

    def shape(self, leaf: Shape) -> Shape:
        return leaf

    def view(self, tensor: np.ndarray) -> np.ndarray:
        return tensor

    def __str__(self) -> str:
        return "same"


@dataclasses.dataclass(frozen=True)
class Transpose:
    """Our kernel [..., in, out] is the weight [..., out, in] of a torch `Linear`."""

    def shape(self, leaf: Shape) -> Shape:
        return (*leaf[:-2], leaf[-1], leaf[-2])

    def view(self, tensor: np.ndarray) -> np.ndarray:
        return tensor.swapaxes(-1, -2)

    def __str__(self) -> str:
        return "transpose"


@dataclasses.dataclass(frozen=True)
class Slice:
    """One of several equal blocks of a tensor along an axis, such as q of a fused q, k, v.

    Attributes:
        i: Index of the block.
        count: Number of blocks.
        axis: Axis of the blocks, -1 or -2.
        then: Operation on the block.

    Raises:
        ValueError: `axis` is not -1 or -2, or `i` is out of range.
    """

    i: int
    count: int
    axis: int
    then: Op = Identity()

    def __post_init__(self) -> None:
        _check(self.i, self.count, self.axis)

    def shape(self, leaf: Shape) -> Shape:
        return _widened(self.then.shape(leaf), self.axis, self.count)

    def view(self, tensor: np.ndarray) -> np.ndarray:
        size = tensor.shape[self.axis] // self.count
        block = slice(self.i * size, (self.i + 1) * size)
        return self.then.view(tensor[_along(self.axis, block)])

    def __str__(self) -> str:
        return _told(f"block {self.i} of {self.count} on axis {self.axis}", self.then)


@dataclasses.dataclass(frozen=True)
class Interleaved:
    """Every `count`-th index of a tensor along an axis, such as gate or up of gpt-oss.

    Attributes:
        i: First index.
        count: Stride.
        axis: Axis of the indices, -1 or -2.
        then: Operation on the selection.

    Raises:
        ValueError: `axis` is not -1 or -2, or `i` is out of range.
    """

    i: int
    count: int
    axis: int
    then: Op = Identity()

    def __post_init__(self) -> None:
        _check(self.i, self.count, self.axis)

    def shape(self, leaf: Shape) -> Shape:
        return _widened(self.then.shape(leaf), self.axis, self.count)

    def view(self, tensor: np.ndarray) -> np.ndarray:
        return self.then.view(tensor[_along(self.axis, slice(self.i, None, self.count))])

    def __str__(self) -> str:
        return _told(f"every {self.count} from {self.i} on axis {self.axis}", self.then)


@dataclasses.dataclass(frozen=True)
class Conv:
    """Our kernel [high, wide, in, out] is the weight [out, in, high, wide] of a `Conv2d`."""

    def shape(self, leaf: Shape) -> Shape:
        high, wide, fan_in, fan_out = leaf
        return (fan_out, fan_in, high, wide)

    def view(self, tensor: np.ndarray) -> np.ndarray:
        return tensor.transpose(2, 3, 1, 0)

    def __str__(self) -> str:
        return "convolution"


@dataclasses.dataclass(frozen=True)
class Lead:
    """The leaf without the tensor's leading axes of size 1, such as a token [1, 1, embed].

    Attributes:
        count: Number of leading axes.
    """

    count: int

    def shape(self, leaf: Shape) -> Shape:
        return (1,) * self.count + leaf

    def view(self, tensor: np.ndarray) -> np.ndarray:
        return tensor[(0,) * self.count + (...,)]

    def __str__(self) -> str:
        return f"without {self.count} leading axes"


def _told(part: str, then: Op) -> str:
    return part if then == Identity() else f"{part}, {then}"


def _check(i: int, count: int, axis: int) -> None:
    if axis not in (-1, -2) or not 0 <= i < count:
        raise ValueError(
            "A part lies on one of the last two axes and has a number below the count, got "
            f"i={i}, count={count}, axis={axis}. Use axis=-1 or axis=-2, and i from 0."
        )


def _widened(shape: Shape, axis: int, count: int) -> Shape:
    axis += len(shape)
    return (*shape[:axis], shape[axis] * count, *shape[axis + 1 :])


def _along(axis: int, index: slice) -> tuple[Any, ...]:
    """Returns an index of all elements, with `index` on `axis`."""
    return (..., index) + (slice(None),) * (-1 - axis)
