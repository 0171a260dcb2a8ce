# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One leaf of a model, from the files to its devices.

Of a plain tensor a device needs a view of the mapped file, which JAX copies while it transfers. A
leaf that is stacked from many tensors, or decoded, is read tensor by tensor into one buffer per
slice: the host holds that leaf and one decoded tensor. On a CPU the buffers are the leaf.
"""

import functools
import itertools
import math
from collections.abc import Callable

import jax
import numpy as np

from dovetail_models.hf.match import Source
from dovetail_models.hf.ops import Transpose
from dovetail_models.hf.safetensors import ALIGN_BYTES

# A slice of a leaf: (start, stop) for each dimension.
_Bounds = tuple[tuple[int, int], ...]
# The side of the squares that a transposed copy goes by: both ends of one stay in the cache. NumPy
# alone goes along one side, at half the speed (0.5 and 1.2 to 1.5 GiB/s on a core).
_TILE = 128


def fill(source: Source, struct: jax.ShapeDtypeStruct, *, dtype: np.dtype) -> jax.Array:
    """The leaf in `dtype` with the shape and sharding of `struct`, perhaps still on its way.

    Every slice is read once, however many devices hold it, and only those of this process.
    """
    shape, sharding = struct.shape, struct.sharding
    if sharding is None and isinstance(source.op, Transpose) and _entries(source) is None:
        stored = source.tensors[0].read()
        if stored.shape == shape[::-1]:
            # The device turns it with all its threads, in half the time of a transfer that turns.
            return _turn(jax.device_put(stored), dtype=dtype)
    if sharding is None:
        whole = _bounds(None, shape)
        return jax.device_put(_slices(source, {whole}, dtype)[whole])
    indices = sharding.addressable_devices_indices_map(shape).values()
    parts = _slices(source, {_bounds(index, shape) for index in indices}, dtype)
    return jax.make_array_from_callback(shape, sharding, lambda i: parts[_bounds(i, shape)])


@functools.partial(jax.jit, static_argnames="dtype")
def _turn(stored: jax.Array, *, dtype: np.dtype) -> jax.Array:
    return stored.T.astype(dtype)


def _bounds(index: tuple[slice, ...] | None, shape: tuple[int, ...]) -> _Bounds:
    index = index or (slice(None),) * len(shape)
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _slices(source: Source, wanted: set[_Bounds], dtype: np.dtype) -> dict[_Bounds, np.ndarray]:
    """{bounds: that slice of the leaf}, a view where the tensor is stored as it is."""
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
    """A reader for each entry of the leaf's first axis, where they are read one by one."""
    if source.stacked:
        return [tensor.read for tensor in source.tensors]
    return source.tensors[0].entries()


def _index(bounds: _Bounds) -> tuple[slice, ...]:
    # Rows that pad a vocabulary lie beyond every bound.
    return tuple(slice(start, stop) for start, stop in bounds)


def _copy(view: np.ndarray, out: np.ndarray) -> None:
    """`out[...] = view`, square by square if both have two axes."""
    if view.ndim != 2:
        out[...] = view
        return
    corners = (range(0, size, _TILE) for size in view.shape)
    for i, j in itertools.product(*corners):
        square = slice(i, i + _TILE), slice(j, j + _TILE)
        out[square] = view[square]


def _empty(shape: list[int], dtype: np.dtype) -> np.ndarray:
    """A buffer that is aligned, so that on a CPU JAX keeps it instead of copying it."""
    count = math.prod(shape) * dtype.itemsize
    raw = np.empty(count + ALIGN_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGN_BYTES
    return raw[start : start + count].view(dtype).reshape(shape)
