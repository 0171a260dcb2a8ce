# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A pseudo-random order of n rows of which any place is computed in O(1), without a table.

A table of 10^9 shuffled rows takes 8 GB and seconds to make, on every host and for every epoch.
Here place i of epoch e is a keyed permutation evaluated at i: a Feistel network over
Z_a x Z_b with ab >= n, walked along its cycle until it falls below n (Black and Rogaway, "Ciphers
with Arbitrary Finite Domains", CT-RSA 2002). a and b are near sqrt(n), so that the walk is short:
ab < n + sqrt(n) + 1. NumPy promises no stable streams between versions; this arithmetic is fixed.
"""

import hashlib
import math

import numpy as np
from jaxtyping import Int64

_FEW = 1 << 12
_ROUNDS, _ROUNDS_OF_FEW = 8, 16  # 8 leave the orders of 5 or 6 rows visibly unequal in frequency


class Permutation:
    """A bijection of [0, n) drawn by `key`: equal keys give equal bijections, on any machine."""

    def __init__(self, n: int, *, key: str) -> None:
        if n < 1:
            raise ValueError(f"a permutation must have n >= 1 places: got n={n}. Give more rows.")
        self._n = n
        self._a = math.isqrt(n - 1) + 1
        self._b = -(-n // self._a)
        rounds = _ROUNDS_OF_FEW if n < _FEW else _ROUNDS
        digests = (hashlib.sha256(f"{key}/{n}/{i}".encode()).digest()[:8] for i in range(rounds))
        self._keys = [np.uint64(int.from_bytes(digest, "little")) for digest in digests]

    def __call__(self, i: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """The values at the places i, each in [0, n)."""
        out = self._feistel(i)
        while (outside := out >= self._n).any():
            out[outside] = self._feistel(out[outside])
        return out

    def _feistel(self, x: np.ndarray) -> np.ndarray:
        left, right = np.divmod(x.astype(np.uint64), np.uint64(self._b))
        for i, key in enumerate(self._keys):
            if i % 2:
                right = (right + _mix(left, key)) % np.uint64(self._b)
            else:
                left = (left + _mix(right, key)) % np.uint64(self._a)
        return (left * np.uint64(self._b) + right).astype(np.int64)


def _mix(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """32 well-mixed bits of x under `key` (the finaliser of SplitMix64; Steele et al. 2014).

    Only 32 bits, so that adding them to a coordinate below 2^32 cannot wrap around.
    """
    z = x + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) >> np.uint64(32)


class Order:
    """The endless sequence of rows: epoch 0 of all n rows, then epoch 1, ..

    seed=None keeps the rows in order; a number shuffles each epoch by (seed, epoch).
    """

    def __init__(self, n: int, *, seed: int | None) -> None:
        self._n = n
        self._seed = seed
        self._current: tuple[int, Permutation] | None = None

    def __call__(self, places: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """The rows at `places`, counted from the first row of epoch 0."""
        epochs, within = np.divmod(places, self._n)
        if self._seed is None:
            return within
        rows = np.empty_like(within)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            rows[chosen] = self._permutation(int(epoch))(within[chosen])
        return rows

    def _permutation(self, epoch: int) -> Permutation:
        if self._current is None or self._current[0] != epoch:
            self._current = epoch, Permutation(self._n, key=f"rows/{self._seed}/{epoch}")
        return self._current[1]
