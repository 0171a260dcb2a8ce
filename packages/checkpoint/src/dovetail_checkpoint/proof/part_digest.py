# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The digest (digest.py) of an array, computed from blocks. The array is never whole in memory.

The digest is a sum over the array's words, each mixed with its position. Each block therefore adds
its share as it is written, and a stacked leaf larger than memory has a digest before it is
complete.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt32

from dovetail_checkpoint.proof.sums import mix, total, word_sums, words_of

# Words of short runs that are mixed at a time: the temporaries stay in the first-level cache.
_WORDS = 1 << 13


def part_sums(
    part: np.ndarray, *, offset: Sequence[int], shape: Sequence[int]
) -> UInt32[np.ndarray, "2"]:
    """Returns the share of `part` in the digest of an array.

    The sums of blocks that cover each element once add up to the digest, modulo 2**32.

    Args:
        part: A block of the array.
        offset: Its first index in the array.
        shape: Shape of the array.
    """
    if not part.size:
        return np.zeros(2, np.uint32)
    outer = _outer_axes(part.shape, shape)
    words = words_of(part)
    per_element = words.size // part.size
    words = words.reshape(math.prod(part.shape[:outer]), -1)
    starts = _run_starts(part.shape[:outer], offset, shape) * np.uint64(per_element)
    if words.shape[1] < _WORDS:
        return _short_runs(words, starts.astype(np.uint32))
    runs = zip(words, starts.tolist(), strict=True)
    return total([sums for run, start in runs for sums in word_sums(run, start)])


def _outer_axes(extent: Sequence[int], shape: Sequence[int]) -> int:
    """Returns the number of axes that count runs: each run is contiguous in the array too."""
    axis = len(shape)
    while axis and extent[axis - 1] == shape[axis - 1]:
        axis -= 1
    return max(axis - 1, 0)  # of the first axis that is cut, what is left follows one another


def _run_starts(extent: Sequence[int], offset: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Returns the position of the first element of each run."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    starts = np.full(1, sum(map(math.prod, zip(offset, strides, strict=True))), np.uint64)
    for n, stride in zip(extent, strides, strict=False):
        starts = (starts[:, None] + np.arange(n, dtype=np.uint64) * np.uint64(stride)).reshape(-1)
    return starts


def _short_runs(words: np.ndarray, starts: np.ndarray) -> UInt32[np.ndarray, "2"]:
    sums = [0, 0]
    along = np.arange(words.shape[1], dtype=np.uint32)
    rows = _WORDS // words.shape[1]
    for row in range(0, starts.size, rows):
        block = words[row : row + rows].astype(np.uint32)
        for i, mixed in enumerate(mix(block, starts[row : row + rows, None] + along)):
            sums[i] += int(np.add.reduce(mixed, axis=None, dtype=np.uint32))
    return np.array([total & 0xFFFFFFFF for total in sums], dtype=np.uint32)
