# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One int32 vector for all host arrays of a step: one transfer in place of twenty.

Floats, unsigned integers and booleans travel as their bits. `Packing` gives the place of each
array; `pack` writes them on the host and `unpack` reads them inside the jitted step.

Shape letters: N tokens, R rows, G page groups, C columns of a page table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from dovetail_infer.step.batch import Batch, RowOptions

# dtype of each option, and its value in padding.
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "temperature": (np.float32, 0),
    "top_k": (np.int32, 0),
    "top_p": (np.float32, 1),
    "min_p": (np.float32, 0),
    "repetition_penalty": (np.float32, 1),
    "frequency_penalty": (np.float32, 0),
    "presence_penalty": (np.float32, 0),
    "bans": (np.bool_, 0),
    "ruled": (np.bool_, 0),
    "keys": (np.uint32, 0),
}


@dataclasses.dataclass(frozen=True)
class Packing:
    """Places of the arrays of a `Batch` in the vector of a program.

    Attributes:
        tokens: N of the program.
        rows: R of the program.
        groups: G.
        columns: C.
        max_rows: Number of slots. It is the slot of padding.
        targets: Whether the vector holds `Batch.targets`.
    """

    tokens: int
    rows: int
    groups: int
    columns: int
    max_rows: int
    targets: bool

    def pack(self, batch: Batch) -> Int32[np.ndarray, " size"]:
        """Returns the vector of a batch, with padding up to N and R."""
        vector = np.empty(self.size, np.int32)
        start = 0
        for values, shape, dtype, fill in self._arrays(batch):
            end = start + math.prod(shape)
            view = vector[start:end]
            if dtype is not np.bool_:
                view = view.view(dtype)
            view = view.reshape(shape)
            if values.shape == shape:
                view[...] = values
            else:
                view[...] = fill
                view[tuple(map(slice, values.shape))] = values
            start = end
        return vector

    def unpack(self, vector: Int32[jax.Array, " size"]) -> Batch:
        """Returns the arrays of a vector, inside `jax.jit`. Targets are empty if it has none."""
        arrays: list[Any] = []
        start = 0
        for _, shape, dtype, _ in self._arrays(None):
            end = start + math.prod(shape)
            values = vector[start:end].reshape(shape)
            if dtype is np.bool_:
                values = values != 0
            elif dtype is not np.int32:
                values = jax.lax.bitcast_convert_type(values, dtype)
            arrays.append(values)
            start = end
        if not self.targets:
            arrays.append(jnp.zeros((0,), jnp.int32))
        options = RowOptions(*arrays[6 : 6 + len(_OPTIONS)])
        return Batch._make([*arrays[:6], options, *arrays[-2:]])

    @property
    def size(self) -> int:
        """Number of integers."""
        return sum(math.prod(shape) for _, shape, _, _ in self._arrays(None))

    def _arrays(self, batch: Batch | None) -> Iterator[tuple[Any, tuple[int, ...], Any, Any]]:
        """Yields values, shape, dtype and padding of each array, in the order of the vector."""
        b: Any = batch
        r = (self.rows,)
        yield b and b.tokens, (self.tokens,), np.int32, 0
        yield b and b.counts, r, np.int32, 0
        yield b and b.lengths, r, np.int32, 0
        yield b and b.slots, r, np.int32, self.max_rows
        yield b and b.samples, r, np.bool_, 0
        yield b and b.tables, (self.groups, *r, self.columns), np.int32, 0
        for name, (dtype, fill) in _OPTIONS.items():
            shape = (*r, 2) if name == "keys" else r
            yield b and getattr(b.options, name), shape, dtype, fill
        yield b and b.adapters, r, np.int32, -1
        if self.targets:
            yield b and b.targets, (self.tokens,), np.int32, -1
