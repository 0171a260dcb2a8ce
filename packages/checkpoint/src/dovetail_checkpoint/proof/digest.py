# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Digest of an array: two 32-bit sums, sensitive to every element and independent of the sharding.

An array of elements e(0), e(1), ... in row-major order is read as 32-bit words: an element of at
most four bytes is one word (zero-extended), wider ones are several, low half first. With word w(j)
at position j,

    k(j) = j * 0x9E3779B9;  k ^= k >> 15                   a key for the position
    x(j) = fmix32(w(j) XOR k(j))                           MurmurHash3's finaliser, a bijection
    y(j) = (x XOR x << 7) * 0x27D4EB2F;  y ^= y >> 15      a second bijection

    digest = (sum of x(j), sum of y(j))  modulo 2**32

x and y are bijections of w(j). A change of one word therefore always changes both sums; other
damage escapes with odds near 2**-64. Sums do not depend on order: each device adds up its own
shard, and the result is the same on every mesh. Mixing has to come before summing: a plain sum of
w(j) * key(j) with odd keys misses any even number of flipped sign bits, since 2**31 times an odd
number is 2**31. Positions repeat after 2**32 words.

An array on an accelerator, or on several devices, goes through one `lax.reduce` over both sums.
This costs one compilation per shape, so small arrays are copied to the host. Arrays on the host,
including JAX's CPU device, are summed in blocks of one shape (sums.py).

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

from dovetail_checkpoint.proof.names import leaf_names, match_names
from dovetail_checkpoint.proof.sums import NARROW, host_sums, mix, reduce_pairs, total

# Leaves of one shape and dtype that hold less than this together are summed on the host: about
# 5 ms, against about 60 ms to compile the sum for a new shape.
_HOST_BYTES = 8 << 20


@jax.transfer_guard("allow")
def digest(tree: Any) -> dict[str, UInt32[jax.Array, "2"]]:
    """Computes the digest of each leaf (see the module), by the name of the leaf.

    May be called inside `jax.jit`.

    Args:
        tree: A pytree of JAX arrays of any sharding, NumPy arrays, numbers (as int64, float64 or
            bool) and typed keys (their key data).

    Returns:
        u32[2] by leaf name.

    Raises:
        TypeError: A leaf has another type.

    Example:

        >>> import jax.numpy as jnp
        >>> {name: value.shape for name, value in digest({"w": jnp.zeros(3)}).items()}
        {'w': (2,)}
    """
    names, leaves, _ = leaf_names(tree)
    return dict(zip(match_names(names), map(jnp.asarray, _begin(leaves)()), strict=True))


def hex_digests(leaves: Sequence[Any]) -> list[str]:
    """Returns the digests of the leaves, each as 16 hexadecimal digits."""
    return begin_digests(leaves)()


def begin_digests(leaves: Sequence[Any]) -> Callable[[], list[str]]:
    """Starts the digests of the leaves; the returned function waits for them.

    The leaves may be donated or changed at once. No accelerator memory is held.
    """
    begun = _begin(leaves)

    @jax.transfer_guard("allow")  # a save ends it on a thread, under the guard of the process
    def end() -> list[str]:
        return [f"{int(x):08x}{int(y):08x}" for x, y in jax.device_get(begun())]

    return end


def _begin(leaves: Sequence[Any]) -> Callable[[], list[Any]]:
    arrays = [_array(leaf) for leaf in leaves]
    away = _stay_on_device(arrays)
    begun = [_begin_one(array, on_host=id(array) not in away) for array in arrays]
    return lambda: _end(begun)


def _stay_on_device(arrays: Sequence[jax.Array | np.ndarray]) -> set[int]:
    """Returns the ids of the arrays to sum on their devices.

    Starts the copies of all small arrays to the host before the first is waited for.
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
    """Returns the digest, perhaps still running, or a function that returns its summands."""
    if not on_host:
        return _device_sums(array)
    if isinstance(array, jax.Array):
        # The view keeps the memory of a CPU array: JAX copies what is donated while it is seen.
        return partial(host_sums, np.asarray(array))
    return total(host_sums(array))


def _end(begun: Sequence[Any]) -> list[Any]:
    # Start all before waiting for the first.
    started = [pending() if callable(pending) else pending for pending in begun]
    return [total(sums) if isinstance(sums, list) else sums for sums in started]


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
    """Returns the digest, computed by XLA in one pass over the array on its devices."""
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
    """Returns the uint32 words of each element: one array per word of an element."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return _word_planes(lax.real(array)) + _word_planes(lax.imag(array))
    if array.dtype == jnp.bool_:
        return [array.astype(jnp.uint32)]
    if array.dtype == jnp.int4:  # cannot be bitcast to a byte
        array = array.astype(jnp.int8)
    elif array.dtype.name in NARROW:
        bits = NARROW[array.dtype.name].bit_length()
        array = lax.bitcast_convert_type(array, f"uint{bits}").astype(jnp.uint8)
    if array.dtype.itemsize < 4:
        bits = jnp.dtype(f"u{array.dtype.itemsize}")
        return [lax.bitcast_convert_type(array, bits).astype(jnp.uint32)]
    words = lax.bitcast_convert_type(array, jnp.uint32)
    return [words] if array.dtype.itemsize == 4 else [words[..., 0], words[..., 1]]
