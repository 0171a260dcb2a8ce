# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random bits for rounding, from an element's index and a key, by a few integer operations.

They depend only on the index in the whole array, so they are the same for every sharding and need
no memory. Rounding does not need Threefry's quality, which would cost 13 times a rounding.
"""

import jax.numpy as jnp
from jaxtyping import Array, UInt32


def mix(index: UInt32[Array, "*shape"], key: UInt32[Array, ""]) -> UInt32[Array, "*shape"]:
    """Returns uniform bits for each index; other keys give unrelated ones."""
    return _scramble(index + _scramble(key))


def _scramble(x: Array) -> Array:
    """Permutes 32-bit integers in two rounds: `lowbias32`, C. Wellons, Hash Prospector, 2018."""
    x = (x ^ x >> 16) * jnp.uint32(0x7FEB352D)
    x = (x ^ x >> 15) * jnp.uint32(0x846CA68B)
    return x ^ x >> 16
