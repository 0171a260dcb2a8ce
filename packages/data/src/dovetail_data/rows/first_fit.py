# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""First-fit bin packing over all open bins, in the order of the pieces.

Each piece depends on those before it, so nothing here is an array operation; the cost is the number
of Python steps per piece. Bins lie in blocks of 1024. Each block has a tree of the largest room
below every node: a descent of ten steps finds the first bin of a block with enough room, and a
climb, stopped at the first unchanged maximum, repairs the tree. The choice of a block needs no
tree: rooms only shrink, so the first block with room for a size only moves on, and is kept per
size.

N pieces of T units in all take O(10 N + T / 1024) steps, about 1 us a piece.
"""

import numpy as np

_BLOCK = 1024


def first_fit(sizes: np.ndarray, *, length: int) -> np.ndarray:
    """Returns the bin of each piece, i64[pieces]: the first of `length` units with enough room.

    `sizes` i64[pieces], each in 1..length, are in order of arrival. Bins are numbered as they are
    opened.
    """
    bins = np.empty(len(sizes), np.int64)
    trees: list[list[int]] = []  # of each block; [1] its root, [_BLOCK + i] the room of its bin i
    first = [0] * (length + 1)  # by size: the first block that may hold it
    for begin in range(0, len(sizes), _BLOCK):
        chunk = sizes[begin : begin + _BLOCK].tolist()
        bins[begin : begin + _BLOCK] = _place(chunk, trees, first, length)
    return bins


def _place(sizes: list[int], trees: list[list[int]], first: list[int], length: int) -> list[int]:
    """Returns the bins of the next pieces, and updates `trees` and `first`."""
    bins = []
    for size in sizes:
        block = first[size]
        while block < len(trees) and trees[block][1] < size:
            block += 1
        first[size] = block
        if block == len(trees):
            trees.append([length] * (2 * _BLOCK))
        tree = trees[block]
        node = 1
        while node < _BLOCK:
            node *= 2
            if tree[node] < size:
                node += 1
        bins.append(block * _BLOCK + node - _BLOCK)
        room = tree[node] - size
        tree[node] = room
        while node > 1:
            beside = tree[node ^ 1]
            if beside > room:
                room = beside
            node //= 2
            if tree[node] == room:
                break
            tree[node] = room
    return bins
