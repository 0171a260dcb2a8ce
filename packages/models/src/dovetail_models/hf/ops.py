# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which part of a tensor in a file is a leaf of ours, as one view that serves both ways.

`op.view(tensor)` is the leaf inside the tensor, without a copy. Reading the slice `index` of the
leaf is `op.view(tensor)[index]`, so a device reads its own part of a mapped file; writing the leaf
is `op.view(tensor)[...] = leaf`, so leaves that share a tensor are written into it one by one.

But for `Conv` and `Lead`, ops act on the last two axes alone and leave the others as they are: what
holds for a tensor holds for each entry of a stack of such tensors.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np

Shape = tuple[int, ...]


@runtime_checkable
class Op(Protocol):
    """Where a leaf lies in a tensor."""

    def shape(self, leaf: Shape) -> Shape:
        """The shape of the tensor for a leaf of this shape."""
        ...

    def view(self, tensor: np.ndarray) -> np.ndarray:
        """The leaf, a view of a tensor of `shape(leaf.shape)`."""
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
    """A kernel [..., in, out] of ours is a weight [..., out, in] of a torch `Linear`."""

    def shape(self, leaf: Shape) -> Shape:
        return (*leaf[:-2], leaf[-1], leaf[-2])

    def view(self, tensor: np.ndarray) -> np.ndarray:
        return tensor.swapaxes(-1, -2)

    def __str__(self) -> str:
        return "transpose"


@dataclasses.dataclass(frozen=True)
class Part:
    """`then` of the i-th of `count` equal blocks along `axis` (-1 or -2): a fused q, k, v."""

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
    """`then` of every `count`-th index from i along `axis` (-1 or -2): gate and up of gpt-oss."""

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
    """A kernel [high, wide, in, out] of ours is a weight [out, in, high, wide] of a `Conv2d`."""

    def shape(self, leaf: Shape) -> Shape:
        high, wide, fan_in, fan_out = leaf
        return (fan_out, fan_in, high, wide)

    def view(self, tensor: np.ndarray) -> np.ndarray:
        return tensor.transpose(2, 3, 1, 0)

    def __str__(self) -> str:
        return "convolution"


@dataclasses.dataclass(frozen=True)
class Lead:
    """The tensor has `count` axes of size 1 before those of the leaf: a token [1, 1, embed]."""

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
    """The index that is `index` on `axis` and everything on the others."""
    return (..., index) + (slice(None),) * (-1 - axis)
