# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Layout of quantized weights in memory and in files: [out, in], for all of Dovetail.

dovetail-quant holds and saves int8 and int4 codes as the same arrays, and every implementation here
multiplies them without a copy. The layout replaced quant's former blocks [B, G, n, g] because a row
of outputs is one run of bytes: a section of a file is a section of the array, a mesh shards outputs
and inputs as it sharded the float weight, and nothing is padded or depends on the number of
devices. It costs no speed: decoded by blocks at 4096 x 4096 on 2 CPU cores with jax 0.10.2, int4 by
128 at 1, 16 and 64 rows takes 2.2, 5.8 and 13.0 ms of CPU time, in quant's blocks 2.0, 6.2, 14.6.

Each four-bit weight shares a byte with its partner in the other half of the group, not with its
neighbour. The low nibbles of a row are then one run of its columns and the high nibbles another.
The product is two products, of the two halves of x. Weights are never interleaved; on a CPU that
would cost more than the product itself.
"""

import dataclasses
import functools
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

BIAS = 8  # added to a four-bit value, so that its nibble is 0..15


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedWeights:
    """Weights w[D, F] = (q - zero) scale, quantized per output channel and group of inputs.

    A pytree of arrays with leading axis F. It can be an argument of `jax.jit`, stacked, and sharded
    along F. D is the number of inputs, g the group size.

    Attributes:
        values: bfloat16[F, D] for 16 bits, the weights themselves. int8[F, D] for 8 bits. uint8[F,
            D/2] for 4 bits: byte j of a group has q[j] + 8 in its low nibble and q[j + g/2] + 8 in
            its high one.
        scales: float32[F, D/g]. None for 16 bits.
        zeros: Zero points, the q of weight 0, float32, int8 or int16 [F, D/g]. They may lie outside
            of the range of q. None: 0 everywhere.
        bits: Bits per weight: 4, 8 or 16.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import PackedWeights, unpack_weights
        >>> values = jnp.array([[1, -2, 3]], jnp.int8)
        >>> packed = PackedWeights(values=values, scales=jnp.array([[0.5]]), bits=8)
        >>> unpack_weights(packed).tolist(), packed.group_size
        ([[0.5], [-1.0], [1.5]], 3)
    """

    values: Any
    scales: Any = None
    zeros: Any = None
    bits: int = dataclasses.field(metadata={"static": True})

    @property
    def in_features(self) -> int:
        """D, the number of inputs."""
        return self.values.shape[-1] * (2 if self.bits == 4 else 1)

    @property
    def out_features(self) -> int:
        """F, the number of output channels."""
        return self.values.shape[-2]

    @property
    def groups(self) -> int:
        """D/g, the number of scales per output channel."""
        return 1 if self.scales is None else self.scales.shape[-1]

    @property
    def group_size(self) -> int:
        """g, the number of inputs per scale."""
        return self.in_features // self.groups

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and zeros."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))


@runtime_checkable
class PackedArrays(Protocol):
    """Packed weights of any library: an object with the fields of `PackedWeights`.

    `in_features` is D. Shapes are those of `PackedWeights`: [F, D] or [F, D/2], and [F, D/g].
    """

    @property
    def values(self) -> Any: ...

    @property
    def scales(self) -> Any: ...

    @property
    def zeros(self) -> Any: ...

    @property
    def bits(self) -> Any: ...

    @property
    def in_features(self) -> int: ...


def nibbles(q: Array, *, group_size: int) -> Array:
    """Packs four-bit q[F, D] into bytes uint8[F, D/2]."""
    rows, columns = q.shape
    halves = q.reshape(rows, columns // group_size, 2, group_size // 2) + jnp.int8(BIAS)
    halves = halves.astype(jnp.uint8)
    return (halves[:, :, 0] | (halves[:, :, 1] << jnp.uint8(4))).reshape(rows, columns // 2)


def columns(x: Array, packed: PackedWeights) -> list[Array]:
    """Splits the columns of x[M, D] like the arrays of `stored`: [x], or its half groups."""
    if packed.bits != 4:
        return [x]
    rows = x.shape[0]
    halves = x.reshape(rows, packed.groups, 2, packed.group_size // 2)
    return [halves[:, :, half].reshape(rows, -1) for half in (0, 1)]


def joined(parts: list[Array], packed: PackedWeights) -> Array:
    """Inverts `columns`."""
    if packed.bits != 4:
        return parts[0]
    rows, groups = parts[0].shape[0], packed.groups
    halves = [half.reshape(rows, groups, 1, packed.group_size // 2) for half in parts]
    return jnp.concatenate(halves, axis=2).reshape(rows, packed.in_features)


def stored(packed: PackedWeights) -> list[Array]:
    """Returns the stored integers as int8: [q], or the low and the high nibbles, q + BIAS."""
    if packed.bits != 4:
        return [packed.values]
    low, high = packed.values & jnp.uint8(15), packed.values >> jnp.uint8(4)
    return [low.astype(jnp.int8), high.astype(jnp.int8)]


def dequantized(packed: PackedWeights, dtype: DTypeLike) -> list[Array]:
    """Returns the weights [F, D], or for 4 bits two arrays [F, D/2] split like `columns`."""
    if packed.bits == 16:
        return [packed.values.astype(dtype)]
    zero = jnp.asarray(BIAS if packed.bits == 4 else 0, dtype)
    if packed.zeros is not None:
        zero = zero + packed.zeros[:, :, None].astype(dtype)
    scale = packed.scales[:, :, None].astype(dtype)
    weights = []
    for q in stored(packed):
        grouped = q.reshape(q.shape[0], packed.groups, -1).astype(dtype)
        # Without zero points of 8 bits there is nothing to subtract.
        shifted = grouped if packed.bits == 8 and packed.zeros is None else grouped - zero
        weights.append((shifted * scale).reshape(q.shape))
    return weights


@functools.partial(jax.jit, static_argnames="dtype")
def unpack_weights(packed: PackedWeights, *, dtype: DTypeLike = jnp.float32) -> Float[Array, "D F"]:
    """Computes the weights w[D, F] = (q - zero) scale of `packed`, in `dtype`.

    Args:
        packed: Packed weights.
        dtype: Floating dtype of the result. Default: float32.

    Returns:
        Weights [D, F], the transpose of the stored order.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import pack_weights, unpack_weights
        >>> packed = pack_weights(jnp.array([[127.0, 0.0], [-3.0, 254.0]]), bits=8)
        >>> unpack_weights(packed).tolist()
        [[127.0, 0.0], [-3.0, 254.0]]
    """
    return joined(dequantized(packed, dtype), packed).T
