# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Regions of a row-major array in a file, read and written.

A region is a number of contiguous runs of bytes. Long runs are read alone. Short runs (a slice of
the last axis) would cost a system call each: the enclosing rows are read instead, and for a write
changed and written back.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Of each axis the first index and the one after the last.
Region = Sequence[tuple[int, int]]

# A run of this many bytes is worth a system call of its own: about 10 us at 6 GB/s.
_LONG_BYTES = 1 << 16
# Rows of short runs that form one span: stays in the cache between the file and the array.
_SPAN_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Span:
    """Bytes of a file that hold an array of `shape`.

    Attributes:
        start: First byte.
        shape: Shape of the array in the span.
        inside: Index of the region's elements in the span; None for all.
        outside: Index of these elements in the array of the region.
    """

    start: int
    shape: tuple[int, ...]
    inside: tuple[slice, ...] | None
    outside: tuple[int | slice, ...]


def read_region(
    file: int, base: int, shape: Sequence[int], dtype: np.dtype, region: Region
) -> np.ndarray:
    """Reads array[region] from an open file into new memory.

    Args:
        file: File descriptor.
        base: First byte of the array.
        shape: Shape of the array.
        dtype: Dtype of the array.
        region: Start and stop for each axis.

    Raises:
        OSError: The file ends early.
    """
    out = np.empty([stop - start for start, stop in region], dtype)
    for span in spans(shape, dtype.itemsize, region):
        target = out[(*span.outside, ...)]  # the dots make it a view, of a scalar too
        if span.inside is None:
            _read(file, base + span.start, target)
        else:
            rows = np.empty(span.shape, dtype)
            _read(file, base + span.start, rows)
            target[...] = rows[span.inside]
    return out


def write_region(
    file: int, base: int, shape: Sequence[int], region: Region, values: np.ndarray
) -> None:
    """Writes array[region] = values into an open file.

    Args:
        file: File descriptor.
        base: First byte of the array.
        shape: Shape of the array.
        region: Start and stop for each axis.
        values: The new values.
    """
    for span in spans(shape, values.itemsize, region):
        block = values[(*span.outside, ...)]
        if span.inside is not None:
            rows = np.empty(span.shape, values.dtype)
            _read(file, base + span.start, rows)
            rows[span.inside] = block
            block = rows
        _write(file, base + span.start, np.ascontiguousarray(block))


def spans(shape: Sequence[int], itemsize: int, region: Region) -> Iterator[Span]:
    """Yields the spans of array[start:stop, ...] of `region`, in the order of the file.

    Args:
        shape: Shape of the array.
        itemsize: Bytes of an element.
        region: Start and stop for each axis.
    """
    if all(start < stop for start, stop in region):
        yield from _spans(tuple(shape), itemsize, tuple(region), 0, ())


def _spans(
    shape: tuple[int, ...],
    itemsize: int,
    region: tuple[tuple[int, int], ...],
    base: int,
    outside: tuple[int, ...],
) -> Iterator[Span]:
    if not shape:
        yield Span(start=base, shape=(), inside=None, outside=outside)
        return
    (low, high), rows, inner = region[0], shape[1:], region[1:]
    row_bytes = math.prod(rows) * itemsize
    if all(extent == (0, n) for extent, n in zip(inner, rows, strict=True)):
        yield Span(
            start=base + low * row_bytes, shape=(high - low, *rows), inside=None, outside=outside
        )
    elif row_bytes > _SPAN_BYTES or _run_bytes(rows, itemsize, inner) >= _LONG_BYTES:
        for i in range(low, high):
            at = (*outside, i - low)
            yield from _spans(rows, itemsize, inner, base + i * row_bytes, at)
    else:
        step = _SPAN_BYTES // row_bytes
        for start in range(low, high, step):
            stop = min(start + step, high)
            yield Span(
                start=base + start * row_bytes,
                shape=(stop - start, *rows),
                inside=(slice(None), *(slice(*extent) for extent in inner)),
                outside=(*outside, slice(start - low, stop - low)),
            )


def _run_bytes(shape: tuple[int, ...], itemsize: int, region: tuple[tuple[int, int], ...]) -> int:
    """Returns the bytes of one contiguous run of the region."""
    size = itemsize
    for (start, stop), n in zip(reversed(region), reversed(shape), strict=True):
        size *= stop - start
        if (start, stop) != (0, n):
            break
    return size


def _read(file: int, start: int, array: np.ndarray) -> None:
    rest = _bytes(array)
    while rest:
        count = os.preadv(file, [rest], start)
        if count == 0:
            raise OSError(f"the file ends at byte {start}")
        rest, start = rest[count:], start + count


def _write(file: int, start: int, array: np.ndarray) -> None:
    rest = _bytes(array)
    while rest:
        count = os.pwrite(file, rest, start)
        rest, start = rest[count:], start + count


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
