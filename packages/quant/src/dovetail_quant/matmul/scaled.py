# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = (x q) scale: codes stay codes into the product, and scales come after it. For GPUs.

Weights that are decoded before a product are written and read again: at two rows and more XLA fuses
a conversion of codes into a product on a GPU, but no multiplication by a scale. 8-bit and 4-bit
integers and float8 are exact in bfloat16 and float16, and the product accumulates in float32, so
nothing is lost: one scale multiplies a sum that was exact to float32. Measured at 4096 x 14336 on
one H200 with jax 0.11.2, in ms (decoded in float32 at HIGHEST | bfloat16 weights | codes):

    rows                          2                    64                   512
    int8, one scale a column    .146 | .040 | .028   .273 | .047 | .047   1.357 | .101 | .158
    int4, one scale a column       -        | .024      -        | .042      -         | .128

(int4 as [K, N].) Codes with one scale a column lie as [N, K]. int8 as [K, N] took .033 ms at two
rows, and in a loop XLA copies int4 that lies as [K, N] into the other layout. Groups lie as [K, N].
int4 is two codes a byte in the memory of a GPU, and XLA reads them in the product; it writes the
nibbles of `PackedWeights` apart first.

One row takes .047 ms, two rows .028, because XLA makes one row a multiplication and a sum: one row
is therefore multiplied as two. Groups have a product each, whose sums [G, R, N] are written: .035
ms at 2 rows, .109 at 64, .653 at 512. Weights decoded as bfloat16 took .118, .123 and .188, but one
bfloat16 rounds each weight. Above 64 rows a weight is therefore the sum of two bfloat16, and the
rows are multiplied by both; so are those of nf4, whose levels are 16 floats.
"""

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_quant.codes.codes import dequantize, weight_of
from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.matmul import rows
from dovetail_quant.matmul.reference import Reference, formula

_MOST_GROUPED_ROWS = 64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TransposedCodes:
    """Codes with one scale a column, as [N, K]. Axes of a stack come before N.

    Attributes:
        values: int8, int4 or float8_e4m3fn [N, K].
        scales: f32[N, 1].
        zeros: Zero points [N, 1], or None.
    """

    values: Any
    scales: Any
    zeros: Any = None

    def back(self) -> QArray:
        """Returns the canonical codes [K, N]."""
        return _transposed(QArray(self.values, self.scales, self.zeros, self.values.dtype))


Prepared: TypeAlias = TransposedCodes | QArray


def _transposed(q: QArray) -> QArray:
    return jax.tree.map(lambda a: jnp.swapaxes(a, -1, -2), q)


@dataclasses.dataclass(frozen=True)
class Scaled:
    """The product for a GPU: all codes, any number of rows, scales after the product.

    |y - x w| <= eps (K + 8) sum |x||w| with eps of float32 (float64 for float64 x), before y is
    rounded to the dtype of x. For bfloat16 and float16 rows |w| is (|q| + |zero|) scale, and where
    bfloat16 rows are multiplied by decoded weights (see the module), each is within 2^-17 of
    itself. Differentiable by the formula of `Reference`, in x and in the scales.

    Example:

        >>> from dovetail_quant import Spec
        >>> from dovetail_quant.codes.codes import quantize
        >>> w = jax.random.normal(jax.random.key(0), (256, 64))
        >>> matmul = Scaled()
        >>> matmul(jnp.ones((3, 256)), matmul.prepare(quantize(w, Spec()))).shape
        (3, 64)
    """

    act: Literal["int8"] | None = dataclasses.field(default=None, init=False)

    def prepare(self, w: QArray | PackedWeights) -> Prepared:
        """Returns codes with one scale a column as [N, K], nf4 and others as [K, N].

        Raises:
            ValueError: The codes are not [K, N] in canonical form.
        """
        if isinstance(w, PackedWeights):
            w = rows.codes(w)
        rows.check_single(w)
        if w.scale.shape[0] > 1 or weight_of(w) == "nf4":
            return w
        turned = _transposed(w)
        return TransposedCodes(values=turned.qvalue, scales=turned.scale, zeros=turned.zero_point)

    def codes(self, prepared: Prepared) -> QArray:
        """Inverts `prepare`, bit for bit."""
        return prepared.back() if isinstance(prepared, TransposedCodes) else prepared

    def __call__(self, x: Float[Array, "*batch K"], prepared: Prepared) -> Float[Array, "*batch N"]:
        """Returns x w in the dtype of x.

        Raises:
            TypeError: x is not floating point.
            ValueError: The last axis of x is not K, or the weights are not one matrix.
        """
        if isinstance(prepared, TransposedCodes):
            rows.check_one(prepared.values)
            outputs, inputs = prepared.values.shape
            mesh, (axes, _) = rows.placement(prepared.values)
        else:
            rows.check_single(prepared)
            inputs, outputs = prepared.qvalue.shape
            mesh, (_, axes) = rows.placement(prepared.qvalue)
        rows.check_rows(x, inputs)
        return rows.on_mesh(_product, x, prepared, outputs=outputs, over=(mesh, axes))

    def take(self, prepared: Prepared, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """Returns w[:, index] in float32: the rows of an embedding with K features.

        NaN for an index outside 0 to N - 1.
        """
        if not isinstance(prepared, TransposedCodes):
            return Reference().take(prepared, index)
        flat = index.reshape(-1)
        selected = jax.tree.map(lambda a: jnp.take(a, flat, axis=0, mode="clip"), prepared)
        inside = (flat >= 0) & (flat < prepared.values.shape[0])
        embedded = jnp.where(inside[:, None], dequantize(selected.back()).T, jnp.nan)
        return embedded.reshape(*index.shape, -1)


# The gradient is that of the formula, in forward and reverse mode.
@jax.custom_jvp
def _product(x: Array, prepared: Prepared) -> Array:
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    y = _rows(flat, prepared)
    return y.astype(x.dtype).reshape(*x.shape[:-1], y.shape[-1])


@_product.defjvp
def _tangent(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    _, tangent = jax.jvp(_formula, primals, tangents)
    return _product(*primals), tangent


def _formula(x: Array, prepared: Prepared) -> Array:
    return formula(x, prepared.back() if isinstance(prepared, TransposedCodes) else prepared)


def _rows(x: Array, prepared: Prepared) -> Array:
    """Returns x [R, K] times w, in float32 or wider."""
    turned = isinstance(prepared, TransposedCodes)
    zeros = prepared.zeros if turned else prepared.zero_point
    if zeros is not None and x.dtype == rows.wide(x.dtype):
        # Sums of codes and of zero points cancel: ten times the error, which bfloat16 hides.
        return _formula(x, prepared)
    if turned:
        zeros = None if zeros is None else zeros.T
        return _scaled(x, prepared.values[:, None], prepared.scales.T, zeros, layout="ngk")
    groups, (inputs, outputs) = prepared.scale.shape[0], prepared.qvalue.shape
    few = isinstance(x.shape[0], int) and x.shape[0] <= _MOST_GROUPED_ROWS  # or symbolic
    if few and weight_of(prepared) != "nf4":
        codes = prepared.qvalue.reshape(groups, inputs // groups, outputs)
        return _scaled(x, codes, prepared.scale, zeros, layout="gkn")
    if x.dtype == jnp.bfloat16:
        return _two_terms(x, dequantize(prepared))
    return formula(x, prepared)


def _scaled(
    x: Array, codes: Array, scale: Array, zeros: Array | None, *, layout: Literal["ngk", "gkn"]
) -> Array:
    """Returns the sum over groups of (x (codes - zeros)) scale, [R, N], in float32 or wider.

    Args:
        x: Rows [R, K].
        codes: Codes in the layout; g groups of k inputs.
        scale: Scales [G, N].
        zeros: Zero points [G, N], or None.
        layout: Axes of the codes.
    """
    count, (groups, _), sums = x.shape[0], scale.shape, rows.wide(x.dtype)
    grouped = x.reshape(count, groups, x.shape[1] // groups)
    single = isinstance(count, int) and count == 1
    # HIGHEST: float32 products stay float32 on hardware that would round them.
    exact = jax.lax.Precision.HIGHEST if x.dtype == sums else None
    y = jnp.einsum(
        f"rgk,{layout}->grn",
        jnp.broadcast_to(grouped, (2, *grouped.shape[1:])) if single else grouped,
        codes.astype(x.dtype),
        precision=exact,
        preferred_element_type=sums,
    )[:, :count]
    if zeros is not None:  # a difference in the operand would be written
        totals = jnp.sum(grouped.astype(sums), axis=2).T
        y = y - totals[:, :, None] * zeros[:, None].astype(sums)
    return jnp.sum(y * scale[:, None].astype(sums), axis=0)


def _two_terms(x: Array, w: Array) -> Array:
    """Returns x w for bfloat16 rows, with float32 weights as the sum of two bfloat16."""
    high = jax.lax.reduce_precision(w, exponent_bits=8, mantissa_bits=7)
    terms = jnp.concatenate([high, w - high]).astype(x.dtype)
    return jnp.dot(jnp.concatenate([x, x], axis=1), terms, preferred_element_type=jnp.float32)
