# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizer state in one byte per value, and one more for each block of the last axis.

A code is a small float: the leading bits of a float32, with its exponent counted down from that of
the block's largest value. Code 0 is zero. All other codes are normal, because a subnormal would
lose the precision that an optimizer divides by. So both directions are integer shifts and adds: no
table, no float8 array (XLA copies it in a loop), no rounding of scales. A block's scale is a power
of two, stored as its exponent. A float16 scale would flush every block below 6e-8.

    fp8           sign, 4 bits of exponent, 3 of mantissa: first moments
    fp8_positive  5 bits of exponent, 3 of mantissa: second moments. Its 31 binades are the 15 of a
                  signed code of the root, at the same precision, without roots and squares.

Rounding to nearest would freeze a moving average: with b2 = 0.999 a second moment falls by at most
0.1 % a step, and half a step between codes is 6 %, so it would never fall. With `dither` the
expected value of a code is the value (except below the smallest code of its block), and averages
stay averages.

8-bit integers are not offered: their steps are equal instead of proportional. If the scales in a
block spread by e², the median value is lost (off by 100 %; companded as in 2602.23349, by 74 %);
these codes are off by 2 % (`benchmarks/compress.py`).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8, UInt32

_MANTISSA = 3  # bits, of float32's 23
_SHIFT = 23 - _MANTISSA
_BROKEN = 255  # the exponent of a block with a value that is not finite


class Coded(NamedTuple):
    """An encoded array.

    Attributes:
        codes: Codes of the array's shape, uint8.
        exponents: Exponent of each block [..., ceil(n / block)], uint8.
    """

    codes: UInt8[Array, "*shape"]
    exponents: UInt8[Array, "*blocks"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp8:
    """A codec of eight bits. `fp8` and `fp8_positive` make one."""

    signed: bool

    @property
    def _top(self) -> int:
        """Largest code, without its sign."""
        return 127 if self.signed else 255

    @property
    def _span(self) -> int:
        """Number of binades below that of the block's largest value."""
        return self._top >> _MANTISSA

    def encode(
        self,
        x: Float[Array, "*shape"],
        *,
        block: int,
        dither: UInt32[Array, "*shape"] | None = None,
    ) -> Coded:
        """Encodes `x`.

        Denormal float32 become zero; with `fp8_positive` the smallest positive code. A block with a
        non-finite value, or a negative one with `fp8_positive`, decodes to NaN.

        Args:
            x: Values of any shape.
            block: Values of the last axis per block; the last block may be shorter.
            dither: Uniform random bits of x's shape. A value then becomes one of its two
                neighbours, with the value as its expectation. Default: round to nearest.
        """
        x = x.astype(jnp.float32)
        value = _blocks(jnp.abs(x) if self.signed else jnp.where(x < 0, jnp.nan, x), block)
        exponents = self._exponents(value)
        base = self._base(exponents)
        if dither is not None:
            dither = _blocks(dither, block)
        codes = _unblocked(self._codes(value, base, dither), x.shape)
        if self.signed:
            codes = codes | (_bits(x) >> 31 << 7).astype(jnp.int32)
        exponents = exponents.reshape(exponents.shape[:-1] if x.ndim else ())
        return Coded(codes.astype(jnp.uint8), exponents.astype(jnp.uint8))

    def _exponents(self, value: Array) -> Array:
        """Returns float32's exponent of each block's largest value, after rounding up; [..., 1]."""
        top = _bits(value.max(-1, keepdims=True, initial=0))  # of floats: it is 4x as fast, on CPUs
        # XLA's parallel maximum on CPUs drops NaN. x * 0 is NaN where x is not finite.
        finite = (value * 0).sum(-1, keepdims=True) == 0
        rounded = ((top + ((1 << _SHIFT) - 1)) >> 23).astype(jnp.int32)
        # Bounded below so that no code stands for a denormal, which processors flush to zero.
        bounded = jnp.clip(rounded, self._span + 1, 254)
        return jnp.where(finite & (top < 0x7F800000), bounded, _BROKEN)

    def _base(self, exponents: Array) -> Array:
        """Returns the offset between a code and the leading bits of its float32."""
        return (exponents.astype(jnp.int32) - self._span) << _MANTISSA

    def _codes(self, value: Array, base: Array, dither: Array | None) -> Array:
        value = _bits(value) & 0x7FFFFFFF  # -0.0 is 0
        if dither is None:
            bump = (1 << (_SHIFT - 1)) - 1 + (value >> _SHIFT & 1)  # to the nearest, ties to even
        else:
            bump = dither >> (32 - _SHIFT)
        codes = ((value + bump) >> _SHIFT).astype(jnp.int32) - base
        smallest = ((base + 1) << _SHIFT).astype(jnp.uint32)
        if self.signed:
            chance = 0.5 if dither is None else (dither >> 8).astype(jnp.float32) * 2.0**-24
            above = _float(value) > chance * _float(smallest)
            codes = jnp.where(value < smallest, above.astype(jnp.int32), codes)
        else:
            codes = jnp.where(value > 0, jnp.maximum(codes, 1), 0)
        return jnp.minimum(codes, self._top)

    def decode(self, coded: Coded, *, block: int) -> Float[Array, "*shape"]:
        """Returns the values of `coded` as float32."""
        codes = _blocks(coded.codes, block).astype(jnp.int32)
        exponents = coded.exponents.reshape(*codes.shape[:-1], 1)
        sizes = codes & self._top
        bits = jnp.where(sizes == 0, 0, (sizes + self._base(exponents)) << _SHIFT)
        if self.signed:
            bits = bits | codes >> 7 << 31
        x = jnp.where(exponents == _BROKEN, jnp.nan, _float(bits))
        return _unblocked(x, coded.codes.shape)


def fp8() -> Fp8:
    """Codec for first moments: values of any sign.

    The relative error is at most 1/17 to the nearest and 1/8 with dither, down to 2⁻¹⁴ of the
    block's largest value. Below, the absolute error is less than 2⁻¹⁴ of it.
    """
    return Fp8(signed=True)


def fp8_positive() -> Fp8:
    """Codec for second moments: values >= 0. No positive value becomes 0.

    An optimizer divides by them, and 0 for a small one would multiply its step by 10⁴. The relative
    error is at most 1/17 to the nearest and 1/8 with dither, down to 2⁻³⁰ of the block's largest
    value. Below, a value becomes at most that.
    """
    return Fp8(signed=False)


def blocks_of(n: int, block: int) -> int:
    """Returns the number of blocks of an axis of size `n`."""
    return -(-n // block)


def _blocks(x: Array, block: int) -> Array:
    """Reshapes [..., n] to [..., blocks, block], padded with zeros; a scalar to [1, 1]."""
    *lead, n = x.shape or (1,)
    block = max(1, min(block, n))
    blocks = blocks_of(n, block)
    x = x.reshape(*lead, n)
    if n != blocks * block:
        x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, blocks * block - n)])
    return x.reshape(*lead, blocks, block)


def _unblocked(x: Array, shape: tuple[int, ...]) -> Array:
    """Reshapes [..., blocks, block] to `shape`, without the padding."""
    *lead, blocks, block = x.shape
    return x.reshape(*lead, blocks * block)[..., : (shape or (1,))[-1]].reshape(shape)


def _bits(x: Array) -> Array:
    return jax.lax.bitcast_convert_type(x, jnp.uint32)


def _float(bits: Array) -> Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
