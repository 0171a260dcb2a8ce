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
from typing import Protocol, runtime_checkable

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
class Part:
    """One of several equal parts of a tensor along an axis: `Slice` or `Interleaved`.

    Attributes:
        i: Index of the part.
        count: Number of parts.
        axis: Axis of the parts, -1 or -2.
        then: Operation on the part.

    Raises:
        ValueError: `axis` is not -1 or -2, or `i` is out of range.
    """

    i: int
    count: int
    axis: int
    then: Op = Identity()

    def __post_init__(self) -> None:
        if self.axis not in (-1, -2) or not 0 <= self.i < self.count:
            raise ValueError(
                "A part lies on one of the last two axes and has a number below the count, got "
                f"i={self.i}, count={self.count}, axis={self.axis}. Use axis=-1 or axis=-2, and i "
                "from 0."
            )

    def shape(self, leaf: Shape) -> Shape:
        shape = list(self.then.shape(leaf))
        shape[self.axis] *= self.count
        return tuple(shape)

    def view(self, tensor: np.ndarray) -> np.ndarray:
        after = (slice(None),) * (-1 - self.axis)
        return self.then.view(tensor[(..., self._indices(tensor.shape[self.axis]), *after)])

    def __str__(self) -> str:
        then = "" if self.then == Identity() else f", {self.then}"
        return f"{self._name()} on axis {self.axis}{then}"

    def _indices(self, size: int) -> slice:
        """Returns the indices of the part on an axis of this size."""
        raise NotImplementedError

    def _name(self) -> str:
        raise NotImplementedError


class Slice(Part):
    """A block of consecutive indices, such as q of a fused q, k, v."""

    def _indices(self, size: int) -> slice:
        block = size // self.count
        return slice(self.i * block, (self.i + 1) * block)

    def _name(self) -> str:
        return f"block {self.i} of {self.count}"


class Interleaved(Part):
    """Every `count`-th index from `i` on, such as gate or up of gpt-oss."""

    def _indices(self, size: int) -> slice:
        return slice(self.i, None, self.count)

    def _name(self) -> str:
        return f"every {self.count} from {self.i}"


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
