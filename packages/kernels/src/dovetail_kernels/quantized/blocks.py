# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w, one block of output channels at a time, dequantized when it is used.

On a CPU the cost of a product with few rows is reading the weights. Dequantized whole they are
written and read again as float32, eight times the bytes of four bits, and jax 0.10.2 leaves its
fast path besides. A block in the core's cache costs only its packed bytes.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType

from dovetail_kernels.mesh import varying
from dovetail_kernels.quantized import reference
from dovetail_kernels.quantized.layout import PackedWeights, columns, dequantized, joined
from dovetail_kernels.quantized.rows import restored, rounded

# Weights of a block: 512 KiB as float32, in the second cache of every current server core.
# Measured on 2 Sapphire Rapids cores, 4096 x 4096, at 1 to 64 rows: 2^17 the fastest or within 5 %,
# 2^20 up to 2.5x slower.
WEIGHTS = 2**17


def run(x: Array, packed: PackedWeights, *, activations: str | None) -> Array:
    """Computes y[M, F] = x[M, D] w[D, F].

    Args:
        x: Activations [M, D].
        packed: Weights of 4 or 8 bits.
        activations: "int8" rounds the rows of x to 8 bits. None keeps them.
    """
    rows, steps = rounded(x, activations=activations)
    # Once: inside, every block would split the rows anew (2.7x the time at 64 rows).
    parts = columns(rows, packed)
    y = by_outputs(lambda block: reference.product(parts, block), packed, weights=WEIGHTS)
    return restored(y, steps, x.dtype)


def by_outputs(
    f: Callable[[PackedWeights], Array], packed: PackedWeights, *, weights: int
) -> Array:
    """Applies `f` to blocks of output channels and concatenates the results.

    Args:
        f: Maps a block of b output channels to [M, b].
        packed: The weights.
        weights: Approximate number of weights per block.

    Returns:
        The results side by side, [M, F].
    """
    runs, apart = _by_device(packed)
    if runs == 1:
        return _by_outputs(f, packed, weights)
    y = jax.vmap(lambda run: _by_outputs(f, run, weights), out_axes=1)(apart)  # [M, runs, F / runs]
    return y.reshape(y.shape[0], packed.out_features)


def _by_outputs(f: Callable[[PackedWeights], Array], packed: PackedWeights, weights: int) -> Array:
    size, count = _blocks(packed, weights)
    if count == 1:
        return f(packed)
    last = packed.out_features - size
    starts = jnp.minimum(jnp.arange(count) * size, last)
    results = jax.lax.map(lambda start: f(_block(packed, start, size)), starts)  # [count, M, b]
    side = results[:-1].transpose(1, 0, 2).reshape(results.shape[1], (count - 1) * size)
    return jnp.concatenate([side, results[-1][:, (count - 1) * size - last :]], axis=1)


def backward(dy: Array, packed: PackedWeights) -> Array:
    """Computes dx[M, D] = dy[M, F] wᵀ, summed over blocks of F, in the dtype of `dy`."""
    runs, apart = _by_device(packed)
    if runs == 1:
        return _backward(dy, packed)
    of_each = dy.reshape(dy.shape[0], runs, packed.out_features // runs)
    return jax.vmap(_backward, in_axes=(1, 0))(of_each, apart).sum(0)


def _backward(dy: Array, packed: PackedWeights) -> Array:
    size, count = _blocks(packed, WEIGHTS)
    if count == 1:
        return reference.backward(dy, packed)
    zeros = columns(jnp.zeros((dy.shape[0], packed.in_features), dy.dtype), packed)
    zeros = varying(zeros, dy, packed)

    def add(sums: list[Array], begin: Array) -> tuple[list[Array], None]:
        start = jnp.minimum(begin, packed.out_features - size)
        some = jax.lax.dynamic_slice_in_dim(dy, start, size, axis=1)
        # The last block may repeat channels of the one before it.
        some = jnp.where(start + jnp.arange(size) >= begin, some, 0)
        weights = dequantized(_block(packed, start, size), dy.dtype)
        return [
            s + jnp.matmul(some, w, precision=reference.EXACT)
            for s, w in zip(sums, weights, strict=True)
        ], None

    sums, _ = jax.lax.scan(add, zeros, jnp.arange(count) * size)
    return joined(sums, packed)


def auto_devices() -> int:
    """Returns the product of the Auto axes of the ambient mesh; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    sizes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return math.prod(size for size, kind in sizes if kind == AxisType.Auto)


def _by_device(packed: PackedWeights) -> tuple[int, PackedWeights]:
    """Returns a number of runs, and the weights as so many runs of channels, [runs, F / runs, ...].

    On a mesh with Auto axes no type says which axes shard the channels, and XLA gathers all codes
    for a loop over a sharded axis. A loop inside of each device's run is local however the channels
    are sharded. 1 run without such a mesh (`jax.set_mesh`), or if its size does not divide F.
    """
    runs, outputs = auto_devices(), packed.out_features
    if runs == 1 or outputs % runs:
        return 1, packed
    each = runs, outputs // runs
    return runs, jax.tree.map(lambda a: a.reshape(*each, *a.shape[1:]), packed)


def _blocks(packed: PackedWeights, weights: int) -> tuple[int, int]:
    """Returns the channels per block and the number of blocks.

    The last block ends with the last channel and may overlap the one before it. A rest of its own
    would be a slice of the weights, and so would the rest of them: a copy in each product.
    """
    # Eight rows at least, the width of a vector: narrower blocks make the loop itself the cost.
    size = max(8, weights // packed.in_features)
    if packed.out_features < 2 * size:
        return packed.out_features, 1
    return size, -(-packed.out_features // size)


def _block(packed: PackedWeights, start: Array, size: int) -> PackedWeights:
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), packed)
