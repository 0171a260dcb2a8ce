# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = (x q) scale: integers stay integers into the product, and scales come after it. For GPUs.

At two rows and more XLA for a GPU fuses a conversion of integers into a product, but nothing else:
dequantized weights are written and read again. Integers of 8 and 4 bits are exact in bfloat16 and
float16, and sums are in float32. On one H200 with jax 0.11.2, int8 [14336, 4096] took .028, .047
and .158 ms at 2, 64 and 512 rows, dequantized in float32 .146, .273 and 1.357, bfloat16 weights
.040, .047 and .101. One row took .047, because XLA multiplies and adds up one row without a
product: it is multiplied as two.

Bytes of two nibbles are read as int4, two neighbours. The rows take their order, and their bias is
a sign: XLA writes the bytes once, with other signs. Groups have a product each, whose sums [G, M,
F] are written, which pays up to 64 rows. Above, a weight is the sum of two bfloat16, where one
would add its rounding to that of the result.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from dovetail_kernels.quantized.layout import PackedWeights, columns, dequantized
from dovetail_kernels.quantized.rows import wide

MOST_GROUPED_ROWS = 64
_SIGNS = 0x88  # q + 8 in a nibble with its highest bit inverted is q in two's complement


def run(x: Array, packed: PackedWeights, *, activations: str | None) -> Array:
    """Computes y[M, F] = x[M, D] w[D, F].

    Args:
        x: Activations [M, D].
        packed: The weights.
        activations: None; rows are multiplied as they are.
    """
    few = isinstance(x.shape[0], int) and x.shape[0] <= MOST_GROUPED_ROWS  # or symbolic
    y = _by_groups(x, packed) if packed.groups == 1 or few else _two_terms(x, packed)
    return y.astype(x.dtype)


def operands(packed: PackedWeights, dtype: DTypeLike) -> np.dtype:
    """Returns the dtype of a product's operands, which holds rows and integers exactly.

    Args:
        packed: The weights.
        dtype: Dtype of the rows.
    """
    exact = packed.bits != 16 or dtype == jnp.bfloat16
    return np.dtype(dtype) if exact else wide(dtype)


def _by_groups(x: Array, packed: PackedWeights) -> Array:
    """Returns the sum over groups of (x (q - zero)) scale, [M, F], in float32 or wider."""
    rows, groups, sums = x.shape[0], packed.groups, wide(x.dtype)
    given = operands(packed, x.dtype)
    grouped = x.reshape(rows, groups, x.shape[1] // groups).astype(given)
    if packed.bits == 4:
        halves = grouped.reshape(rows, groups, 2, -1)
        grouped = halves.swapaxes(2, 3).reshape(grouped.shape)
    single = isinstance(rows, int) and rows == 1
    y = jnp.einsum(
        "mgk,fgk->gmf",
        jnp.broadcast_to(grouped, (2, *grouped.shape[1:])) if single else grouped,
        _integers(packed).reshape(packed.out_features, groups, -1).astype(given),
        precision=jax.lax.Precision.HIGHEST if given == sums else None,
        preferred_element_type=sums,
    )[:, :rows]
    if packed.zeros is not None:
        totals = jnp.sum(grouped.astype(sums), axis=2).T
        y = y - totals[:, :, None] * packed.zeros.T[:, None].astype(sums)
    if packed.scales is not None:
        y = y * packed.scales.T[:, None].astype(sums)
    return jnp.sum(y, axis=0)


def _integers(packed: PackedWeights) -> Array:
    """Returns q [F, D]; of 4 bits a group's halves alternate. bfloat16 weights are themselves."""
    if packed.bits != 4:
        return packed.values
    pairs = jax.lax.bitcast_convert_type(packed.values ^ jnp.uint8(_SIGNS), jnp.int4)
    return pairs.reshape(packed.out_features, packed.in_features)


def _two_terms(x: Array, packed: PackedWeights) -> Array:
    """Returns x w for bfloat16 rows, with float32 weights as the sum of two bfloat16."""
    rows, weights = [], []
    for own, w in zip(columns(x, packed), dequantized(packed, jnp.float32), strict=True):
        high = jax.lax.reduce_precision(w, exponent_bits=8, mantissa_bits=7)
        rows += [own, own]
        weights += [high, w - high]
    a, b = jnp.concatenate(rows, axis=1), jnp.concatenate(weights, axis=1).astype(x.dtype)
    return jnp.einsum("md,fd->mf", a, b, preferred_element_type=jnp.float32)
