# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""How a tensor in a file becomes a leaf of ours and back, a slice at a time.

An op turns a slice of the leaf into the slice of the tensor that it needs, as a view of the mapped
file: a device reads its own part and nothing is copied on the way.
"""

from typing import Protocol, runtime_checkable

import numpy as np

Slices = tuple[slice, ...]


@runtime_checkable
class Op(Protocol):
    """A bijection between a tensor in a file and a leaf."""

    def shape(self, leaf: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor for a leaf of this shape."""
        ...

    def read(self, tensor: np.ndarray, index: Slices) -> np.ndarray:
        """The part `index` of the leaf, a view where it can be one."""
        ...

    def write(self, leaf: np.ndarray) -> np.ndarray:
        """The tensor of a whole leaf."""
        ...


class Identity:
    """The leaf is the tensor."""

    def shape(self, leaf: tuple[int, ...]) -> tuple[int, ...]:
        return leaf

    def read(self, tensor: np.ndarray, index: Slices) -> np.ndarray:
        return tensor[index]

    def write(self, leaf: np.ndarray) -> np.ndarray:
        return leaf


class Transpose:
    """A kernel [in, out] of ours is a weight [out, in] of a torch `Linear`."""

    def shape(self, leaf: tuple[int, ...]) -> tuple[int, ...]:
        return leaf[::-1]

    def read(self, tensor: np.ndarray, index: Slices) -> np.ndarray:
        return tensor.T[index]

    def write(self, leaf: np.ndarray) -> np.ndarray:
        return leaf.T
