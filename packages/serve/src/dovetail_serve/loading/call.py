# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Any number of rows by programs for fixed numbers: padded with zeros, or split over several."""

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from dovetail_serve.types import Array, Tensor, numpy_dtype

# Runs the program for exactly this number of rows.
Execute = Callable[[Mapping[str, Array], int | None], Mapping[str, Array]]


def call_rows(
    execute: Execute,
    inputs: Mapping[str, Array],
    *,
    rows: int,
    batch_sizes: Sequence[int],
    outputs: Mapping[str, Tensor],
) -> dict[str, np.ndarray]:
    """Returns the outputs for `rows` rows.

    Args:
        execute: Runs one batch size.
        inputs: Arrays with `rows` rows.
        rows: Number of rows. With 0, nothing runs.
        batch_sizes: Numbers of rows accepted by `execute`, ascending.
        outputs: Tensors of the outputs by name.

    Returns:
        Arrays with memory of their own.
    """
    results = {name: _empty(tensor, rows) for name, tensor in outputs.items()}
    for start, stop, size in _chunks(rows, batch_sizes):
        chunk = {name: _padded(array, start, stop, size) for name, array in inputs.items()}
        for name, values in execute(chunk, size).items():
            results[name][start:stop] = np.asarray(values)[: stop - start]
    return results


def _chunks(rows: int, batch_sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields start, stop and size: the largest as often as it is full, the rest padded."""
    largest = batch_sizes[-1]
    for start in range(0, rows, largest):
        stop = min(start + largest, rows)
        yield start, stop, batch_sizes[bisect.bisect_left(batch_sizes, stop - start)]


def _padded(array: Array, start: int, stop: int, size: int) -> Array:
    """Returns rows of an array, with zeros after them up to `size` rows."""
    values = np.asarray(array)
    if stop - start == size:
        return values[start:stop]
    padded = np.zeros((size, *values.shape[1:]), values.dtype)
    padded[: stop - start] = values[start:stop]
    return padded


def _empty(tensor: Tensor, rows: int) -> np.ndarray:
    return np.empty(tensor.sized(rows), numpy_dtype(tensor.dtype))


def read_only(arrays: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """Returns views for a host function. The arrays are the caller's, or of several requests."""
    views = {name: np.asarray(value).view() for name, value in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views
