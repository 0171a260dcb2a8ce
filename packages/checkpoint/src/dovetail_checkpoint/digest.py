# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Digest of an array: two 32-bit sums that every changed element changes and no sharding does.

An array of elements e(0), e(1), ... in row-major order is read as 32-bit words: an element of
at most four bytes is one word (zero-extended), wider ones are several, low half first. With word
w(j) at position j,

    k(j) = j * 0x9E3779B9;  k ^= k >> 15                   a key for the position
    x(j) = fmix32(w(j) XOR k(j))                           MurmurHash3's finaliser, a bijection
    y(j) = (x XOR x << 7) * 0x27D4EB2F;  y ^= y >> 15      a second bijection

    digest = (sum of x(j), sum of y(j))  modulo 2**32

x and y are bijections of w(j), so a change confined to one word always changes both sums; other
damage escapes with odds near 2**-64. Sums do not depend on order, so each device adds up its own
part and the result is the same on every mesh. Mixing has to come before summing: a plain sum of
w(j) * key(j) with odd keys misses any even number of flipped sign bits, since 2**31 times an odd
number is 2**31. Positions repeat after 2**32 words.

What lies on an accelerator, or on several devices, goes through one `lax.reduce` over both sums.
That costs a compilation for each shape, so little data is copied to the host. What lies there, on
JAX's CPU device too, is summed in blocks of one shape (sums.py).

Source: fmix32 of Appleby's MurmurHash3; 0x9E3779B9 is 2**32 over the golden ratio.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import UInt32

from dovetail_checkpoint.names import leaf_names, match_names
from dovetail_checkpoint.sums import host_sums, mix, reduce_pairs, total

# Leaves of one shape and dtype that hold less than this together are summed on the host: about
# 5 ms, against about 60 ms to compile the sum for a new shape.
_HOST_BYTES = 8 << 20


def digest(tree: Any) -> dict[str, UInt32[jax.Array, "2"]]:
    """The digest of each leaf (module docstring), by the name of the leaf.

    Leaves: JAX arrays of any sharding, NumPy arrays, numbers (as int64, float64 or bool) and typed
    keys (their key data). May be called inside `jax.jit`. Raises TypeError for another leaf.

    >>> digest({"w": jnp.zeros(3)})["w"].shape
    (2,)
    """
    names, leaves, _ = leaf_names(tree)
    return dict(zip(match_names(names), map(jnp.asarray, _begin(leaves)()), strict=True))


def hex_digests(leaves: Sequence[Any]) -> list[str]:
    """The digests of the leaves, each as 16 hexadecimal digits."""
    return begin_digests(leaves)()


def begin_digests(leaves: Sequence[Any]) -> Callable[[], list[str]]:
    """Begins the digests of the leaves as they are now; the function returned waits for them.

    The leaves may be donated or changed at once, and no accelerator's memory is held.
    """
    end = _begin(leaves)
    return lambda: [f"{int(x):08x}{int(y):08x}" for x, y in jax.device_get(end())]


def _begin(leaves: Sequence[Any]) -> Callable[[], list[Any]]:
    arrays = [_array(leaf) for leaf in leaves]
    away = _stay_on_device(arrays)
    begun = [_begin_one(array, on_host=id(array) not in away) for array in arrays]
    return lambda: _end(begun)


def _stay_on_device(arrays: Sequence[jax.Array | np.ndarray]) -> set[int]:
    """The ids of the arrays that are summed where they lie; starts the copy of those few bytes that
    are summed on the host, all together, before the first is waited for.
    """
    away = [x for x in arrays if isinstance(x, jax.Array) and not _lies_on_host(x)]
    together = Counter()
    for array in away:
        together[array.shape, array.dtype] += array.nbytes
    stay = set()
    for array in away:
        many = together[array.shape, array.dtype] >= _HOST_BYTES
        if many or isinstance(array, Tracer) or not array.is_fully_addressable:
            stay.add(id(array))
        else:
            array.copy_to_host_async()
    return stay


def _begin_one(array: jax.Array | np.ndarray, *, on_host: bool) -> Any:
    """The digest, perhaps still on its way, or what gives its parts when called."""
    if not on_host:
        return _device_sums(array)
    if isinstance(array, jax.Array):
        # The view keeps the memory of a CPU array: JAX copies what is donated while it is seen.
        return partial(host_sums, np.asarray(array))
    return total(host_sums(array))


def _end(begun: Sequence[Any]) -> list[Any]:
    started = [one() if callable(one) else one for one in begun]  # all, before any is waited for
    return [total(found) if isinstance(found, list) else found for found in started]


def _array(leaf: Any) -> jax.Array | np.ndarray:
    if isinstance(leaf, jax.Array):
        return leaf if isinstance(leaf.dtype, np.dtype) else jax.random.key_data(leaf)
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float):
        return np.asarray(leaf)
    raise TypeError(
        f"a leaf must be an array, a typed key or a number, got type={type(leaf).__name__}; "
        "leave it out, or give an array"
    )


def _lies_on_host(array: jax.Array) -> bool:
    if isinstance(array, Tracer):
        return False
    devices = array.sharding.device_set
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


@jax.jit
def _device_sums(array: jax.Array) -> jax.Array:
    """The digest by XLA: one pass over the array where it lies."""
    planes = _word_planes(array if array.ndim else array[None])
    shape = planes[0].shape
    element = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        step = np.uint32(stride & 0xFFFFFFFF)
        element += lax.broadcasted_iota(jnp.uint32, shape, axis) * step
        stride *= shape[axis]
    sums = jnp.zeros(2, jnp.uint32)
    for i, words in enumerate(planes):
        mixed = mix(words, element * np.uint32(len(planes)) + np.uint32(i))
        sums += reduce_pairs(mixed, tuple(range(len(shape))))
    return sums


def _word_planes(array: jax.Array) -> list[jax.Array]:
    """The uint32 words of each element: one array of them for each word that an element has."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return _word_planes(lax.real(array)) + _word_planes(lax.imag(array))
    if array.dtype == jnp.bool_:
        return [array.astype(jnp.uint32)]
    if array.dtype == jnp.int4:  # cannot be bitcast
        array = array.astype(jnp.int8)
    if array.dtype.itemsize < 4:
        bits = jnp.dtype(f"u{array.dtype.itemsize}")
        return [lax.bitcast_convert_type(array, bits).astype(jnp.uint32)]
    words = lax.bitcast_convert_type(array, jnp.uint32)
    return [words] if array.dtype.itemsize == 4 else [words[..., 0], words[..., 1]]
