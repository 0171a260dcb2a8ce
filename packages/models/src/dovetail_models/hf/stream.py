# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fills one leaf of a model, from the files to its devices.

For a plain tensor, a device needs a view of the mapped file; JAX copies it during the transfer. A
stacked or decoded leaf is read tensor by tensor into one buffer per slice. The host then holds that
leaf and one decoded tensor. On a CPU the buffers are the leaf.
"""

import functools
import itertools
import math
from collections.abc import Callable

import jax
import numpy as np

from dovetail_models.hf.match import Source
from dovetail_models.hf.safetensors import ALIGN_BYTES
from dovetail_models.tables.ops import Transpose

# A slice of a leaf: (start, stop) for each dimension.
_Bounds = tuple[tuple[int, int], ...]
# Side of the squares of a transposed copy. Both sides of a square stay in the cache. NumPy alone
# copies along one side, at half the speed or less (0.5 against 1.2 to 1.5 GiB/s on a core).
_TILE = 128


def fill(source: Source, struct: jax.ShapeDtypeStruct, *, dtype: np.dtype) -> jax.Array:
    """Fills a leaf and places it on its devices. The transfer may still run on return.

    Each slice is read once, regardless of the number of devices, and only if a device of this
    process holds it.

    Args:
        source: The tensors of the leaf.
        struct: Shape and sharding of the leaf. Without sharding it goes to the default device.
        dtype: Dtype of the result.

    Returns:
        The leaf.
    """
    shape, sharding = struct.shape, struct.sharding
    if sharding is None and isinstance(source.op, Transpose) and _entries(source) is None:
        stored = source.tensors[0].read()
        if stored.shape == shape[::-1]:
            # The device transposes with all its threads: half the time of a transposing transfer.
            return _turn(jax.device_put(stored), dtype=dtype)
    if sharding is None:
        whole = _bounds(None, shape)
        return jax.device_put(_slices(source, {whole}, dtype)[whole])
    indices = sharding.addressable_devices_indices_map(shape).values()
    parts = _slices(source, {_bounds(index, shape) for index in indices}, dtype)
    return jax.make_array_from_callback(shape, sharding, lambda i: parts[_bounds(i, shape)])


@functools.partial(jax.jit, static_argnames="dtype")
def _turn(stored: jax.Array, *, dtype: np.dtype) -> jax.Array:
    """Transposes on the device and casts."""
    return stored.T.astype(dtype)


def _bounds(index: tuple[slice, ...] | None, shape: tuple[int, ...]) -> _Bounds:
    """Returns (start, stop) of each dimension; the full extent without an index."""
    index = index or (slice(None),) * len(shape)
    return tuple(interval.indices(size)[:2] for interval, size in zip(index, shape, strict=True))


def _slices(source: Source, wanted: set[_Bounds], dtype: np.dtype) -> dict[_Bounds, np.ndarray]:
    """Reads the slices `wanted` of the leaf. A slice of a tensor stored as it is stays a view."""
    readers = _entries(source)
    if readers is None:
        leaf = source.op.view(source.tensors[0].read())
        return {bounds: leaf[_index(bounds)].astype(dtype, copy=False) for bounds in wanted}
    parts = {bounds: _empty([stop - start for start, stop in bounds], dtype) for bounds in wanted}
    for e, read in enumerate(readers):
        users = [bounds for bounds in wanted if e in range(*bounds[0])]
        if not users:
            continue
        entry = source.op.view(read())
        for bounds in users:
            _copy(entry[_index(bounds[1:])], parts[bounds][e - bounds[0][0]])
    return parts


def _entries(source: Source) -> list[Callable[[], np.ndarray]] | None:
    """Returns a reader per entry of the first axis; None if entries are not read one by one."""
    if source.stacked:
        return [tensor.read for tensor in source.tensors]
    return source.tensors[0].entries()


def _index(bounds: _Bounds) -> tuple[slice, ...]:
    """Returns the bounds as slices."""
    # Padding rows of a vocabulary lie beyond every bound.
    return tuple(slice(start, stop) for start, stop in bounds)


def _copy(view: np.ndarray, out: np.ndarray) -> None:
    """Copies `view` to `out`, in squares if both have two axes."""
    if view.ndim != 2:
        out[...] = view
        return
    corners = (range(0, size, _TILE) for size in view.shape)
    for i, j in itertools.product(*corners):
        square = slice(i, i + _TILE), slice(j, j + _TILE)
        out[square] = view[square]


def _empty(shape: list[int], dtype: np.dtype) -> np.ndarray:
    """Returns an aligned buffer; JAX on a CPU keeps such a buffer without copying it."""
    count = math.prod(shape) * dtype.itemsize
    raw = np.empty(count + ALIGN_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGN_BYTES
    return raw[start : start + count].view(dtype).reshape(shape)
