# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The two sums of the digest (digest.py) over words in host memory.

Words go in blocks of one shape through one XLA program for the CPU, at 11 GB/s of 32-bit words: one
program per length would cost one compilation each. Short arrays go through NumPy, at 1.3 GB/s, with
the same functions and the same result. Without a CPU backend of JAX, NumPy computes everything.
"""

import functools
import logging
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import UInt32

_logger = logging.getLogger(__name__)

# Bits of the elements of the other narrow dtypes; int4 is digested as int8.
NARROW = {"int2": 0b11, "float4_e2m1fn": 0b1111}

_POSITION = np.uint32(0x9E3779B9)
_FMIX_1 = np.uint32(0x85EBCA6B)
_FMIX_2 = np.uint32(0xC2B2AE35)
_SECOND = np.uint32(0x27D4EB2F)

# The largest hides the 60 us in which a program starts and fits the second-level cache; what is
# left of an array goes in the others, and what is left of that to NumPy.
_BLOCK_BYTES = (4 << 20, 1 << 20, 256 << 10)
# XLA copies a block that does not lie at a multiple of this. Of a long array NumPy takes the words
# before the first multiple; a short one would pay more for the words that then fill no block.
_ALIGNED_BYTES = 64
# Words summed at a time by NumPy: the temporaries stay in the first-level cache.
_NUMPY_WORDS = 1 << 13


def mix(words, positions):
    """Returns x and y of the digest, for NumPy or JAX arrays of uint32."""
    key = positions * _POSITION
    x = words ^ key ^ (key >> 15)
    x = (x ^ (x >> 16)) * _FMIX_1
    x = (x ^ (x >> 13)) * _FMIX_2
    x = x ^ (x >> 16)
    y = (x ^ (x << 7)) * _SECOND
    return x, y ^ (y >> 15)


def reduce_pairs(mixed, axes: tuple[int, ...]) -> jax.Array:
    """Returns both sums at once; XLA fuses them with the mixing into a single read."""
    zeros = (np.uint32(0), np.uint32(0))
    return jnp.stack(lax.reduce(mixed, zeros, lambda a, b: (a[0] + b[0], a[1] + b[1]), axes))


def host_sums(array: np.ndarray) -> list[np.ndarray | jax.Array]:
    """Returns the summands of an array's digest (`word_sums`)."""
    return word_sums(words_of(array), 0)


def words_of(array: np.ndarray) -> np.ndarray:
    """Returns the array's words in row-major order, unsigned; a view if possible."""
    # A narrow element lies in a byte whose upper bits are not defined.
    if array.dtype == jnp.int4:
        array = array.astype(np.int8)
    elif mask := NARROW.get(array.dtype.name):
        array = np.ascontiguousarray(array).view(np.uint8) & np.uint8(mask)
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.dtype(f"u{min(flat.dtype.itemsize, 4)}"))


def word_sums(words: np.ndarray, start: int) -> list[np.ndarray | jax.Array]:
    """Returns arrays whose `total` is the sums of `words`, the first at position `start`.

    Does not wait: `words` must not change until `total` returns.
    """
    parts, done = [], 0
    device = _cpu() if words.nbytes >= _BLOCK_BYTES[-1] else None
    if device is not None:
        if words.nbytes >= _BLOCK_BYTES[0]:
            done = -words.ctypes.data % _ALIGNED_BYTES // words.itemsize
            parts.append(_numpy_sums(words[:done], start))
        # Also on the threads of a save or a read, which have the guard of the whole process.
        with jax.default_device(device), jax.transfer_guard("allow"):
            for block_bytes in _BLOCK_BYTES:
                size = block_bytes // words.itemsize
                while words.size - done >= size:
                    first = np.uint32((start + done) & 0xFFFFFFFF)
                    parts.append(_xla_sums(words[done : done + size], first))
                    done += size
    return [*parts, _numpy_sums(words[done:], start + done)]


def total(parts: Iterable[np.ndarray | jax.Array]) -> UInt32[np.ndarray, "2"]:
    """Returns the sums over all parts. Waits for them."""
    return sum(map(np.asarray, parts), np.zeros(2, np.uint32))


def _numpy_sums(words: np.ndarray, start: int) -> np.ndarray:
    sums = [0, 0]
    for i in range(0, words.size, _NUMPY_WORDS):
        block = words[i : i + _NUMPY_WORDS].astype(np.uint32)
        first = start + i
        positions = np.arange(first, first + block.size, dtype=np.uint64).astype(np.uint32)
        for k, mixed in enumerate(mix(block, positions)):
            sums[k] += int(np.add.reduce(mixed, dtype=np.uint32))
    return np.array([value & 0xFFFFFFFF for value in sums], dtype=np.uint32)


@jax.jit
def _xla_sums(words: jax.Array, first: jax.Array) -> jax.Array:
    positions = lax.iota(jnp.uint32, words.size) + first
    return reduce_pairs(mix(words.astype(jnp.uint32), positions), (0,))


@functools.cache
def _cpu() -> Any:
    """A CPU device of this process, or None."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        _logger.warning(
            "JAX has no CPU backend here, so host arrays and files are digested by NumPy, an "
            "eighth as fast; add cpu to jax_platforms"
        )
        return None
