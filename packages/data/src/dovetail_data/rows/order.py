# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A pseudo-random order of n rows, with random access in O(1) and without a table; and its places
without those that are left out.

A table of 10^9 shuffled rows takes 8 GB and seconds to build, on every host and for every epoch.
Here place i of epoch e is a keyed permutation evaluated at i: a Feistel network over Z_a x Z_b with
ab >= n, walked along its cycle until it falls below n (Black and Rogaway, "Ciphers with Arbitrary
Finite Domains", CT-RSA 2002). a and b are near sqrt(n), so that the walk is short: ab < n + sqrt(n)
+ 1. NumPy promises no stable streams between versions; this arithmetic is fixed.

An iterator that leaves out places counts the others. The *rank* of a place is the number of kept
places before it. Ranks and kept places increase together, so each is found from the other by a
search among the ranges left out.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from dovetail_data._arguments import wrong

_FEW = 1 << 12
_ROUNDS, _ROUNDS_OF_FEW = 8, 16  # 8 leave the orders of 5 or 6 rows visibly unequal in frequency

_BLOCK = 1 << 14  # places at a time: the arrays of a round stay in the cache

_WRITE = "Pass half-open ranges of places, such as [range(4096, 4608)]."

# The finaliser of SplitMix64 (Steele et al. 2014). Arrays, because NumPy converts scalars anew.
_M1, _M2 = (np.array([m], np.uint64) for m in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_30, _27, _31, _32 = (np.array([shift], np.uint64) for shift in (30, 27, 31, 32))


class Permutation:
    """A bijection of [0, n) drawn by `key`. Equal keys give equal bijections on any machine."""

    def __init__(self, n: int, *, key: str) -> None:
        if n < 1:
            raise ValueError(f"a permutation must have n >= 1 places: got n={n}. Give more rows.")
        self._n = n
        self._a = math.isqrt(n - 1) + 1
        self._b = -(-n // self._a)
        rounds = _ROUNDS_OF_FEW if n < _FEW else _ROUNDS
        digests = (hashlib.sha256(f"{key}/{n}/{i}".encode()).digest()[:8] for i in range(rounds))
        self._keys = [int.from_bytes(digest, "little") for digest in digests]

    def __call__(self, i: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Returns the values at the places i, each in [0, n)."""
        out = np.empty(len(i), np.int64)
        for begin in range(0, len(i), _BLOCK):
            out[begin : begin + _BLOCK] = self._walk(i[begin : begin + _BLOCK])
        return out

    def _walk(self, i: np.ndarray) -> np.ndarray:
        out = self._feistel(i)
        while (outside := out >= self._n).any():
            out[outside] = self._feistel(out[outside])
        return out

    def _feistel(self, x: np.ndarray) -> np.ndarray:
        a, b = np.array([self._a], np.uint64), np.array([self._b], np.uint64)
        left, right = np.divmod(x.astype(np.uint64), b)
        z, shifted = np.empty_like(left), np.empty_like(left)
        for i, key in enumerate(np.array(self._keys, np.uint64).reshape(-1, 1)):
            if i % 2:
                _add_mixed(right, left, key, b, z, shifted)
            else:
                _add_mixed(left, right, key, a, z, shifted)
        return (left * b + right).astype(np.int64)


def _add_mixed(
    to: np.ndarray, of: np.ndarray, key: np.ndarray, modulus: np.ndarray, *free: np.ndarray
) -> None:
    """Computes to = (to + 32 well-mixed bits of `of` under `key`) % modulus in place.

    `free` are two buffers. With only 32 bits, adding to a coordinate below 2^32 cannot wrap around.
    """
    z, shifted = free
    np.add(of, key, z)
    for shift, multiplier in ((_30, _M1), (_27, _M2)):
        np.right_shift(z, shift, shifted)
        np.bitwise_xor(z, shifted, z)
        np.multiply(z, multiplier, z)
    np.right_shift(z, _31, shifted)
    np.bitwise_xor(z, shifted, z)
    np.right_shift(z, _32, z)
    np.add(to, z, to)
    np.remainder(to, modulus, to)


class Order:
    """The endless sequence of rows: epoch 0 of all n rows, then epoch 1, and so on.

    `seed=None` keeps the rows in order. A number shuffles each epoch by (seed, epoch).
    """

    def __init__(self, n: int, *, seed: int | None) -> None:
        self._n = n
        self._seed = seed
        self._current: tuple[int, Permutation] | None = None

    def __call__(self, places: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Returns the rows at `places`, counted from the first row of epoch 0."""
        if self._seed is None:
            return places % self._n
        epochs, within = np.divmod(places, self._n)
        rows = np.empty_like(within)
        for epoch in np.unique(epochs).tolist():
            in_epoch = epochs == epoch
            rows[in_epoch] = self._permutation(epoch)(within[in_epoch])
        return rows

    def _permutation(self, epoch: int) -> Permutation:
        current = self._current  # read once: another thread may be in another epoch
        if current is None or current[0] != epoch:
            current = epoch, Permutation(self._n, key=f"rows/{self._seed}/{epoch}")
            self._current = current
        return current[1]


class LeftOut:
    """Disjoint, sorted ranges of places that are left out.

    Args:
        ranges: Ranges of places with step 1, in any order. They may touch or overlap.

    Raises:
        TypeError: An element is not a range.
        ValueError: A range is empty, begins below 0, or has another step than 1.
    """

    def __init__(self, ranges: Sequence[range]) -> None:
        self.ranges = _merged(_checked(ranges))
        self._starts = np.array([r.start for r in self.ranges], np.int64)
        lengths = [len(r) for r in self.ranges]
        self._before = np.cumsum([0, *lengths]).astype(np.int64)

    def places(self, ranks: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Returns the places with these ranks."""
        if not self.ranges:
            return ranks
        first_ranks = self._starts - self._before[:-1]
        return ranks + self._before[np.searchsorted(first_ranks, ranks, side="right")]

    def rank(self, place: int) -> int:
        """Returns the number of kept places before `place`."""
        return place - sum(max(0, min(place, r.stop) - r.start) for r in self.ranges)

    def before(self, place: int) -> list[range]:
        """Returns the ranges, or their beginnings, that lie before `place`."""
        return [range(r.start, min(r.stop, place)) for r in self.ranges if r.start < place]

    def __repr__(self) -> str:
        return ",".join(f"{r.start}:{r.stop}" for r in self.ranges) or "none"


def _checked(ranges: Any) -> list[range]:
    if isinstance(ranges, range) or not isinstance(ranges, Sequence):
        raise wrong("leave_out", "a sequence of ranges", ranges, _WRITE)
    for each in ranges:
        if not isinstance(each, range):
            raise wrong("leave_out", "a sequence of ranges", ranges, _WRITE)
        if each.step != 1 or each.start < 0 or not each:
            raise ValueError(
                f"a range of leave_out must count up by 1 from 0 or more: got {each}. {_WRITE}"
            )
    return list(ranges)


def _merged(ranges: Sequence[range]) -> tuple[range, ...]:
    merged: list[range] = []
    for each in sorted(ranges, key=lambda r: r.start):
        if merged and each.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, each.stop))
        else:
            merged.append(each)
    return tuple(merged)
