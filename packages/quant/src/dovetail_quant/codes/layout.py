# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Packed weights, [outputs, inputs], in memory and in files, for all of Dovetail.

    values [N, K]: bytes of 8-bit codes                 scales, zeros [N, G]
    values [N, G h]: two 4-bit codes a byte, h = g/2 rounded up

A 4-bit code shares its byte with its partner in the other half of the group of g inputs, not with
its neighbour: low nibbles are the group's first h inputs, high ones the rest. A product is then two
products, with the two halves of x. Interleaving codes would cost more than the product. An odd
group has one unused high nibble, which meets a 0 in x.

For int8 and int4 of even groups these are the arrays of dovetail-kernels, field by field; a test of
both asserts it. The alternative was blocks of outputs, [B, G, n, g]. A row of outputs as one run of
bytes can be read from a file in shards, is sharded like the float weight, and has no padding that
depends on the number of devices. It costs no speed: decoded by blocks at 4096 x 4096 on 2 CPU cores
with jax 0.10.2, int4 by 128 at 1, 16 and 64 rows takes 2.2, 5.8 and 13.0 ms of CPU time in this
layout, 2.0, 6.2 and 14.6 in the other.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from qwix import QArray

from dovetail_quant.codes.codes import DTYPES, check, weight_of
from dovetail_quant.codes.spec import Weight

FOUR_BITS: tuple[Weight, ...] = ("int4", "nf4")
_BIAS = 8  # what a nibble holds above its int4: 0 to 15
# Weights of a block. As float32 512 KiB and 1 MiB: with smaller ones the loop is the cost, larger
# ones leave the core's second cache. 8-bit codes are cheaper to decode, so their loop shows sooner.
_BLOCK = {4: 2**17, 8: 2**18}
_LEAST_OUTPUTS = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedWeights:
    """Codes in the layout for multiplication (see the module). Axes of a stack come before N.

    A pytree of arrays: it can be jitted over, mapped, scanned, and sharded along N or G.

    Attributes:
        values: int8 for int8, uint8 for all others.
        scales: f32[N, G].
        zeros: i16[N, G], or None. i8 for codes made by Qwix, whose ranges contain 0.
        weight: The codes, as in `Spec`.
        group: g, inputs per scale.
    """

    values: Any
    scales: Any
    zeros: Any = None
    weight: Weight = dataclasses.field(metadata={"static": True})
    group: int = dataclasses.field(metadata={"static": True})

    @property
    def bits(self) -> int | None:
        """Bits of integer codes, 8 or 4, as in dovetail-kernels; None for nf4 and fp8."""
        return {"int8": 8, "int4": 4}.get(self.weight)

    @property
    def groups(self) -> int:
        """G, groups of inputs."""
        return self.scales.shape[-1]

    @property
    def in_features(self) -> int:
        """K."""
        return self.groups * self.group

    @property
    def out_features(self) -> int:
        """N."""
        return self.scales.shape[-2]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))


def pack_weights(q: QArray) -> PackedWeights:
    """Packs the codes [*b, K, N].

    Raises:
        ValueError: Codes or scales are not canonical.
    """
    check(q)
    return _packed(q)


# One program, where op by op each would be compiled for each shape of weights.
@jax.jit
def _packed(q: QArray) -> PackedWeights:
    weight, groups = weight_of(q), q.scale.shape[-2]
    group = q.qvalue.shape[-2] // groups
    values = jnp.swapaxes(_bytes(q.qvalue, weight), -1, -2)
    if weight in FOUR_BITS:
        values = _nibbles(values, group)
    zeros = q.zero_point
    return PackedWeights(
        values=values,
        scales=jnp.swapaxes(q.scale, -1, -2),
        zeros=None if zeros is None else _whole_bytes(jnp.swapaxes(zeros, -1, -2)),
        weight=weight,
        group=group,
    )


def unpack_weights(packed: PackedWeights) -> QArray:
    """Inverts `pack_weights`, bit for bit."""
    weight, values, zeros = packed.weight, packed.values, packed.zeros
    if weight in FOUR_BITS:
        halves = [grouped(half, packed) for half in (values & jnp.uint8(15), values >> 4)]
        whole = jnp.concatenate(halves, axis=-1)[..., : packed.group]
        values = whole.reshape(*values.shape[:-1], packed.in_features)
    return QArray(
        _from_bytes(jnp.swapaxes(values, -1, -2), weight),
        jnp.swapaxes(packed.scales, -1, -2),
        None if zeros is None else _zero_points(jnp.swapaxes(zeros, -1, -2), weight),
        "nf4" if weight == "nf4" else DTYPES[weight],
    )


def grouped(values: Array, packed: PackedWeights) -> Array:
    """Reshapes [..., G h] or [..., K] to [..., G, h] or [..., G, g]."""
    return values.reshape(*values.shape[:-1], packed.groups, values.shape[-1] // packed.groups)


def split(x: Array, packed: PackedWeights) -> list[Array]:
    """Splits x [R, K] by the columns of the codes: [R, G, g], or two halves [R, G, h]."""
    whole = x.reshape(x.shape[0], packed.groups, packed.group)
    if packed.weight not in FOUR_BITS:
        return [whole]
    half = packed.values.shape[-1] // packed.groups
    padded = jnp.pad(whole, ((0, 0), (0, 0), (0, 2 * half - packed.group)))
    return [padded[:, :, :half], padded[:, :, half:]]


def merge(parts: list[Array], packed: PackedWeights) -> Array:
    """Inverts `split`."""
    whole = jnp.concatenate(parts, axis=2)[:, :, : packed.group]
    return whole.reshape(whole.shape[0], packed.in_features)


def blocks(packed: PackedWeights) -> tuple[int, int]:
    """Returns (B, n): blocks to decode at a time, as equal as possible, and outputs per block.

    The last block ends with the last output and may overlap the previous one, so nothing is padded
    or copied.
    """
    most = max(_LEAST_OUTPUTS, _BLOCK[4 if packed.weight in FOUR_BITS else 8] // packed.in_features)
    count = -(-packed.out_features // most)
    return count, -(-packed.out_features // count)


def block(packed: PackedWeights, start: Array | int, size: int) -> PackedWeights:
    """Returns `size` outputs from `start`.

    Args:
        packed: The weights.
        start: First output.
        size: Number of outputs.
    """
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), packed)


def by_blocks(f: Callable[[PackedWeights], Array], packed: PackedWeights) -> Array:
    """Applies f to all blocks and returns the results [R, n] side by side: [R, N]."""
    shards, apart = by_device(packed)
    if shards == 1:
        return _by_blocks(f, packed)
    y = jax.vmap(functools.partial(_by_blocks, f), out_axes=1)(apart)  # [R, S, N / S]
    return y.reshape(y.shape[0], packed.out_features)


def _by_blocks(f: Callable[[PackedWeights], Array], packed: PackedWeights) -> Array:
    count, size = blocks(packed)
    if count == 1:
        return f(packed)
    last = packed.out_features - size
    starts = jnp.minimum(jnp.arange(count) * size, last)
    y = jax.lax.map(lambda start: f(block(packed, start, size)), starts)  # [B, R, n]
    side = y[:-1].transpose(1, 0, 2).reshape(y.shape[1], (count - 1) * size)
    return jnp.concatenate([side, y[-1][:, (count - 1) * size - last :]], axis=1)


def by_device(packed: PackedWeights) -> tuple[int, PackedWeights]:
    """Returns (S, the weights as S runs of outputs, [S, N / S, ...]), S the devices of the mesh.

    On a mesh with automatic axes nothing tells which axes shard the outputs, and XLA gathers the
    weights of a loop over a sharded axis. A loop inside of each run is local for every sharding of
    the outputs. S is 1 without a mesh (`jax.set_mesh`), or if its size does not divide N.
    """
    shards, outputs = jax.sharding.get_abstract_mesh().size, packed.out_features
    if shards < 2 or outputs % shards:
        return 1, packed
    runs = shards, outputs // shards
    return shards, jax.tree.map(lambda a: a.reshape(*runs, *a.shape[1:]), packed)


def _whole_bytes(zeros: Array) -> Array:
    return zeros.astype(jnp.int8) if zeros.dtype == jnp.int4 else zeros


def _zero_points(zeros: Array, weight: Weight) -> Array:
    """Inverts `_whole_bytes`: bytes are zero points in the dtype of the codes."""
    return zeros.astype(DTYPES[weight]) if zeros.dtype == jnp.int8 else zeros


def _nibbles(values: Array, group: int) -> Array:
    """[..., K] of 0 to 15 as [..., G h]."""
    values = values.reshape(*values.shape[:-1], -1, group)
    half = -(-group // 2)
    values = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, 2 * half - group)])
    both = values[..., :half] | (values[..., half:] << jnp.uint8(4))
    return both.reshape(*both.shape[:-2], -1)


def _bytes(codes: Array, weight: Weight) -> Array:
    if weight == "int8":
        return codes
    if weight == "int4":
        return (codes.astype(jnp.int8) + jnp.int8(_BIAS)).astype(jnp.uint8)
    if weight == "nf4":
        return codes.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(codes, jnp.uint8)


def _from_bytes(values: Array, weight: Weight) -> Array:
    if weight == "int8":
        return values
    if weight == "int4":
        return (values.astype(jnp.int8) - jnp.int8(_BIAS)).astype(jnp.int4)
    if weight == "nf4":
        return values.astype(jnp.uint4)
    return jax.lax.bitcast_convert_type(values, jnp.float8_e4m3fn)
