# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w with x in int8: integer products of rounded rows, or of rows split into digits.

    W8A8    x = q step, |q| <= 127: one int8 row, within step / 2 of x
    Digits  x = step (d0 + d1 / 254 + d2 / 254^2), |d| <= 127: three int8 rows, x to 2^-24 max|x|

Processors multiply many int8 rows in two to four times less time than float32, and read one-byte
weights directly. Sums are int32 and exact; scales come after them. Four-bit codes are widened to
int8 by blocks. Codes in groups are decoded as in `Blocked`: a product of integers for each group
took 1.5 to 2.4 times that time at 1 to 64 rows (4096 x 4096 int4 by 128).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from dovetail_quant.codes.codes import int8_steps
from dovetail_quant.codes.layout import PackedWeights, by_blocks, split
from dovetail_quant.matmul import blocked, rows

# The longest group: |d (q - zero)| <= 127 * 255, and 2^16 of them stay below 2^31.
LONGEST = 2**16
# Sums below it fit int32, even if the float32 sum that is compared is off by 2^9.
_EXACT_SUM = 2.0**31 - 2.0**10
_BASE = 254
# XLA's CPU backend multiplies one int8 row by a vector route: 5 to 12 times slower than float32.
_LEAST_ROWS = 2


@dataclasses.dataclass(frozen=True)
class W8A8(rows.OfPacked):
    """The product that rounds each row of x to round(x / step) step, step = max|x| / 127.

    With the integers q of x, |y - step q w| <= 4 eps sum |step q||w| for one group, eps of float32,
    and as for `Blocked` with more. The gradient treats rounding as the identity: dx = dy w
    transposed. A row whose step would be below the least normal float32 counts as zeros; a row with
    inf or nan gives inf or nan throughout.

    Example:

        >>> from dovetail_quant import Spec
        >>> from dovetail_quant.codes.codes import quantize
        >>> w = jax.random.normal(jax.random.key(0), (256, 64))
        >>> matmul = W8A8()
        >>> matmul(jnp.ones((3, 256)), matmul.prepare(quantize(w, Spec()))).shape
        (3, 64)
    """

    act: Literal["int8"] | None = dataclasses.field(default="int8", init=False)

    def checked(self, packed: PackedWeights) -> PackedWeights:
        """Returns the weights; ValueError unless they are int8 or int4."""
        return _integers(packed, "w8a8")

    def __call__(
        self, x: Float[Array, "*batch K"], prepared: PackedWeights
    ) -> Float[Array, "*batch N"]:
        """Returns rounded x times w, in the dtype of x.

        Raises:
            TypeError: x is not floating point.
            ValueError: The last axis of x is not K, codes are not integers, a group is too long, or
                a gradient in the weights is requested.
        """
        return rows.call(_rounded_forward, blocked.backward, x, self.checked(prepared))


@dataclasses.dataclass(frozen=True)
class Digits(rows.OfPacked):
    """The product of x, in three digits, with integers: float32's accuracy at int8's speed.

    |y - x w| <= eps (8 sum |x||w| + 2 max|x| sum |w|) for each row of x, eps of float32, for one
    group; more groups are multiplied as in `Blocked`. Rows with inf or nan give inf or nan
    throughout.
    """

    act: Literal["int8"] | None = dataclasses.field(default=None, init=False)

    def checked(self, packed: PackedWeights) -> PackedWeights:
        """Returns the weights; ValueError unless they are int8 or int4."""
        return _integers(packed, "digits")

    def __call__(
        self, x: Float[Array, "*batch K"], prepared: PackedWeights
    ) -> Float[Array, "*batch N"]:
        """Returns x w in the dtype of x. Raises like `W8A8`, and TypeError for float64 x."""
        if x.dtype == jnp.float64:
            raise TypeError(
                "digits hold what float32 holds, got x of dtype=float64; write matmul=Blocked()"
            )
        return rows.call(_digits_forward, blocked.backward, x, self.checked(prepared))


def rounded(x: Float[Array, "R K"]) -> tuple[Array, Array]:
    """Returns int8 round(x / step) and the float32 step [R, 1] = max|x| / 127 of each row."""
    steps, step = int8_steps(x)
    return jnp.round(steps).astype(jnp.int8), step


def digits(x: Float[Array, "R K"]) -> tuple[Array, Array]:
    """Returns int8 [3 R, K] (the first digits of all rows, then the second ...) and step [R, 1]."""
    (rest, step), digits_ = int8_steps(x), []
    for _ in range(3):
        digit = jnp.round(rest)
        rest = (rest - digit) * _BASE
        digits_.append(digit.astype(jnp.int8))
    return jnp.concatenate(digits_), step


def products(q: Array, packed: PackedWeights) -> Array:
    """Returns float32 [M, N], scale times the sum of q (code - zero), for one group.

    The sum is an exact int32. Zero points outside of the codes can make it larger: such a sum is
    off by 2 eps.
    """
    count = q.shape[0]
    q = jnp.pad(q, ((0, max(0, _LEAST_ROWS - count)), (0, 0)))
    if packed.weight == "int8":
        sums = _sums(q, packed.values)
    else:
        low, high = (half[:, 0] for half in split(q, packed))

        def halves(one: PackedWeights) -> Array:
            nibbles = one.values & jnp.uint8(15), one.values >> jnp.uint8(4)
            codes = [half.astype(jnp.int8) - jnp.int8(8) for half in nibbles]
            return _sums(low, codes[0]) + _sums(high, codes[1])

        sums = by_blocks(halves, packed)
    if packed.zeros is not None:
        sums = _less_zeros(sums, q, packed.zeros.reshape(1, -1).astype(jnp.int32))
    return (sums.astype(jnp.float32) * packed.scales.reshape(1, -1).astype(jnp.float32))[:count]


def _less_zeros(sums: Array, q: Array, zeros: Array) -> Array:
    """Returns sums - zeros times the total of q, [M, N]: exact in int32, or larger in float32.

    int32 wraps around, so its difference is right wherever the result fits, whatever the terms do.
    """
    total = jnp.sum(q, axis=1, keepdims=True, dtype=jnp.int32)  # below 2^23: exact in float32
    large = sums.astype(jnp.float32) - total.astype(jnp.float32) * zeros.astype(jnp.float32)
    exact = (sums - total * zeros).astype(jnp.float32)
    return jnp.where(jnp.abs(large) < _EXACT_SUM, exact, large)


def _sums(q: Array, codes: Array) -> Array:
    """Returns int32 [M, N], exact: q [M, K] times codes [N, K] transposed."""
    return jax.lax.dot_general(q, codes, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)


def _rounded_forward(x: Array, packed: PackedWeights) -> Array:
    q, step = rounded(x)
    if packed.groups > 1:
        return (blocked.forward(q.astype(jnp.float32), packed) * step).astype(x.dtype)
    return (products(q, packed) * step).astype(x.dtype)


def _digits_forward(x: Array, packed: PackedWeights) -> Array:
    if packed.groups > 1:
        return blocked.forward(x, packed)
    q, step = digits(x)
    first, second, third = jnp.split(products(q, packed), 3)
    return (first + (second + third / _BASE) / _BASE) * step


def _integers(packed: PackedWeights, product: str) -> PackedWeights:
    if packed.weight not in ("int8", "int4"):
        raise ValueError(
            f"{product} multiplies integers, got codes={packed.weight}; write matmul=Blocked()"
        )
    if packed.group > LONGEST:
        raise ValueError(
            f"{product} keeps int32 sums of at most {LONGEST} inputs, got group={packed.group}; "
            f"write Spec(group=...) up to {LONGEST}, or matmul=Blocked()"
        )
    return packed
