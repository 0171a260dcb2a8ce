# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights as codes: w = (level(code) - zero) scale, one scale per output and group of inputs.

The arithmetic equals Qwix's bit for bit, so files and results agree. Symmetric integers spread
absmax over 127.5 or 7.5 levels, because the last code also holds values that round down to it.
Groups whose scale would fall below the root of the least float32 get the scale 1. One thing
differs: everything is float32, whatever the dtype of w, because a bfloat16 scale costs more
accuracy than its two bytes per group are worth. Under jit a division by a constant may become a
product with its reciprocal, one bit off; the constants here are hidden from XLA, so jit changes no
code.

An asymmetric range need not contain 0: that of weights in [3, 4] is [3, 4], where Qwix widens it to
[0, 4], four times the error. The zero point then lies outside of the codes and has more bits than
they. It is int16 in all arrays and files. A float offset would take 4 bytes for the same, and
integer products need integers. A range whose zero point would pass int16 is widened: it is narrower
than 1 / 127 of its largest weight (int8; 1 / 2167 for int4), and its error is at most 2^-15.9 of
that weight, 2^-7 of bfloat16's. `qwix.dequantize` refuses such zero points; cast them to
the dtype of the codes where ranges contain 0, which makes them Qwix's.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Bool, Float, Shaped
from qwix import QArray

from dovetail_quant.codes.spec import Spec, Weight

# Quantiles of a normal distribution, scaled to [-1, 1] and with a 0: arXiv:2305.14314, appendix E.
NF4: tuple[float, ...] = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
DTYPES: dict[Weight, Any] = {
    "int8": jnp.int8,
    "int4": jnp.int4,
    "nf4": jnp.uint4,
    "fp8": jnp.float8_e4m3fn,
}
# What absmax, or half of max - min, is divided by. 448 is the largest float8_e4m3fn.
_SYMMETRIC: dict[Weight, float] = {"int8": 127.5, "int4": 7.5, "nf4": 1.0, "fp8": 448.0}
_RANGE: dict[Weight, tuple[int, int]] = {"int8": (-128, 127), "int4": (-8, 7)}
_LEAST_SCALE = float(np.sqrt(np.finfo(np.float32).tiny))
ZERO = jnp.int16  # dtype of zero points
# The most steps between 0 and a weight, so that zero points fit int16 with the codes' 2^8 added.
_MOST_STEPS = 2.0**15 - 2.0**8

_Scale = Float[Array, "*b G N"]
_Zero = Shaped[Array, "*b G N"] | None


def absmax(x: Array, *, axis: int, keepdims: bool = False) -> Array:
    """Returns max|x| along an axis; inf where x has NaN.

    `jnp.max` alone loses NaN: XLA's parallel reductions on CPUs skip it (4,096 numbers and more,
    jax 0.10.2 and 0.12).

    Args:
        x: The numbers.
        axis: The axis that is reduced.
        keepdims: Keep the axis, with size 1.
    """
    # x * 0 is 0, or NaN where x is not finite. Unlike a selection, XLA fuses it into the sum.
    finite = jnp.sum(x * 0, axis=axis, keepdims=keepdims) == 0
    return jnp.where(finite, jnp.max(jnp.abs(x), axis=axis, keepdims=keepdims), jnp.inf)


def int8_steps(x: Array) -> tuple[Array, Array]:
    """Returns float32 x / step, within 127, and step = max|x| / 127 along the last axis, kept.

    A step below the least normal float32 is 0, as XLA on a CPU has it by itself. x / 0 is x here.
    """
    x = x.astype(jnp.float32)
    # A product, which XLA makes of a division by 127 in some places and not in others.
    step = absmax(x, axis=-1, keepdims=True) * np.float32(1 / 127)
    step = jnp.where(step < np.finfo(np.float32).tiny, 0.0, step)
    return x / jnp.where(step == 0, 1.0, step), step


def scales(w: Float[Array, "*b K N"], spec: Spec) -> tuple[_Scale, _Zero]:
    """Computes scale = max|w| / levels of each group, with `clip` or `rms` that of their range;
    asymmetric (max - min) / levels and a zero point.

    Returns:
        The scale in float32, and the zero point in int16 (None if `spec.symmetric`), the code of
        weight 0 on the grid of the codes, which may lie outside of their range.

    Raises:
        ValueError: `spec.group` does not divide K.
    """
    groups = 1 if spec.group is None else w.shape[-2] // spec.group
    if groups * (spec.group or w.shape[-2]) != w.shape[-2] or 0 in w.shape:
        raise ValueError(_refused_group(w.shape, spec.group))
    grouped = _grouped(w.astype(jnp.float32), groups)
    if spec.symmetric:
        return _divided(_bound(grouped, spec), _SYMMETRIC[spec.weight]), None
    low, high = _RANGE[spec.weight]
    least, largest = jnp.min(grouped, axis=-2), absmax(grouped, axis=-2)
    # The maximum alone loses NaN.
    most = jnp.where(largest < jnp.inf, jnp.max(grouped, axis=-2), jnp.inf)
    scale = jnp.maximum((most - least) / float(high - low), largest / _MOST_STEPS)
    scale = _divided(scale, 1.0)
    return scale, jnp.round(low - least / scale).astype(ZERO)


def _bound(grouped: Float[Array, "*b G k N"], spec: Spec) -> Float[Array, "*b G N"]:
    """Returns the largest number of each symmetric range."""
    if spec.rms is None:
        largest = absmax(grouped, axis=-2)
        return largest if spec.clip == 1 else largest * spec.clip
    return jnp.sqrt(jnp.mean(jnp.square(grouped), axis=-2)) * spec.rms


def outside(w: Float[Array, "*b K N"], spec: Spec) -> Bool[Array, "*b K N"] | None:
    """Returns where weights lie beyond the range of their group. None if none can."""
    if spec.clip == 1 and spec.rms is None:
        return None
    groups = w.shape[-2] // (spec.group or w.shape[-2])
    grouped = _grouped(w.astype(jnp.float32), groups)
    return (jnp.abs(grouped) > _bound(grouped, spec)[..., :, None, :]).reshape(w.shape)


def encode(
    w: Float[Array, "*b K N"], scale: _Scale, zero_point: _Zero, spec: Spec
) -> Shaped[Array, "*b K N"]:
    """Returns the codes nearest to w / scale + zero_point, in the dtype of `spec.weight`.

    Ties go to the even integer, and to the lower level of nf4. A value beyond the last level gets
    its code.

    Args:
        w: Weights.
        scale: One scale per output and group. Its shape gives the group size; `spec.group` is not
            read, so a few rows can be encoded alone.
        zero_point: Integer zero points, or None.
        spec: The codes.

    Raises:
        ValueError: The groups of `scale` do not divide K.
    """
    steps = _spread(w.astype(jnp.float32), scale, jnp.divide)
    if zero_point is not None:
        steps = _spread(steps, zero_point.astype(jnp.float32), jnp.add)
    dtype = DTYPES[spec.weight]
    if spec.weight == "nf4":
        return _nearest_nf4(steps).astype(dtype)
    if spec.weight == "fp8":
        return jnp.clip(steps, -_SYMMETRIC["fp8"], _SYMMETRIC["fp8"]).astype(dtype)
    return jnp.clip(jnp.round(steps), *_RANGE[spec.weight]).astype(dtype)


def decode(
    codes: Shaped[Array, "*b K N"], scale: _Scale, zero_point: _Zero, spec: Spec
) -> Float[Array, "*b K N"]:
    """Returns (level(code) - zero_point) scale in float32.

    Args:
        codes: Codes, as `encode` returns them.
        scale: One scale per output and group.
        zero_point: Integer zero points, or None.
        spec: The codes.
    """
    return _decoded(codes, scale, zero_point, spec.weight)


def quantize(w: Float[Array, "*b K N"], spec: Spec) -> QArray:
    """Rounds w to the nearest codes of `spec`, with the scales of `scales`.

    Equals `qwix.quantize(w.astype(jnp.float32), ...)` with channelwise N, tiled K bit for bit.

    Raises:
        ValueError: The group does not divide K, or w holds inf or nan, or a range above the largest
            float32. Under jit such a group instead gives scales of inf or nan.

    Example:

        >>> w = jax.random.normal(jax.random.key(0), (256, 64))
        >>> q = quantize(w, Spec(weight="int4", group=128))
        >>> float(jnp.abs(w - dequantize(q)).max()) < 0.3
        True
    """
    scale, zero = scales(w, spec)
    if not isinstance(scale, Tracer) and not bool(jnp.all(jnp.isfinite(scale))):
        raise ValueError(
            "quantize needs finite weights, got w with inf, nan or a range above the largest "
            f"float32, of shape={tuple(w.shape)}; write jnp.nan_to_num(w) if they may be replaced"
        )
    codes = encode(w, scale, zero, spec)
    return QArray(codes, scale, zero, "nf4" if spec.weight == "nf4" else codes.dtype)


def dequantize(q: QArray) -> Float[Array, "*b K N"]:
    """Returns the weights of the codes, in float32.

    Raises:
        ValueError: The codes have an unknown type, or the scale is not [*b, G, N] with G dividing
            K.
    """
    check(q)
    return _decoded(q.qvalue, q.scale, q.zero_point, weight_of(q))


def nbytes(q: Any) -> int:
    """Returns the bytes of a pytree of codes, scales and zero points, two 4-bit codes a byte;
    arrays may be abstract.
    """
    return sum(-(-leaf.size * _bits(leaf.dtype) // 8) for leaf in jax.tree.leaves(q))


def weight_of(q: QArray) -> Weight:
    """Returns the name of the codes, as in `Spec.weight`.

    Raises:
        ValueError: No Spec has these codes.
    """
    if isinstance(q.qtype, str) and q.qtype == "nf4" and q.qvalue.dtype == jnp.uint4:
        return "nf4"
    name = q.qtype if isinstance(q.qtype, str) else jnp.dtype(q.qtype).name
    for weight, dtype in DTYPES.items():
        if weight != "nf4" and q.qvalue.dtype.name == name == jnp.dtype(dtype).name:
            return weight
    raise ValueError(
        f"codes must be int8, int4, nf4 or float8_e4m3fn, got qvalue={q.qvalue.dtype}, "
        f"qtype={q.qtype!r}; write quantize(w, Spec(weight='int8'))"
    )


def check(q: QArray) -> None:
    """Raises ValueError unless q is canonical: codes [*b, K, N], scale (and zero) [*b, G, N]."""
    weight_of(q)
    shape, scale = tuple(q.qvalue.shape), tuple(q.scale.shape)
    fits = (
        len(shape) >= 2
        and 0 not in shape
        and len(scale) == len(shape)
        and scale[:-2] == shape[:-2]
        and scale[-1] == shape[-1]
        and scale[-2] > 0
        and shape[-2] % scale[-2] == 0
    )
    if not fits:
        raise ValueError(
            f"scale must be [*b, G, N] with G dividing K of codes [*b, K, N], got scale={scale}, "
            f"codes={shape}; write jnp.broadcast_to(scale, shape) or quantize(w, Spec())"
        )
    if q.zero_point is not None and tuple(q.zero_point.shape) != scale:
        raise ValueError(
            f"zero_point must have the shape of scale={scale}, got "
            f"zero_point={tuple(q.zero_point.shape)}; write jnp.broadcast_to(zero_point, shape)"
        )


def _divided(span: Array, levels: float) -> Array:
    scale = span / levels
    return jnp.where(scale < _LEAST_SCALE, jnp.ones_like(scale), scale)


def _grouped(a: Array, groups: int) -> Array:
    """Returns [*b, K, N] as [*b, G, K/G, N]."""
    return a.reshape(*a.shape[:-2], groups, a.shape[-2] // groups, a.shape[-1])


def _spread(a: Array, per_group: Array, op: Any) -> Array:
    """Returns op(a[*b, K, N], per_group[*b, G, N]), each of G with its K/G rows of a."""
    groups = per_group.shape[-2]
    if a.shape[-2] % groups:
        raise ValueError(_refused_group(a.shape, a.shape[-2] // groups))
    return op(_grouped(a, groups), per_group[..., :, None, :]).reshape(a.shape)


def _nearest_nf4(x: Array) -> Array:
    """Returns the first of the nearest levels: 15 comparisons, no array of 16 distances."""
    x = jnp.clip(x, -1.0, 1.0)  # from far away all levels are equally far
    best, code = jnp.abs(x - NF4[0]), jnp.zeros(x.shape, jnp.uint8)
    for i, level in enumerate(NF4[1:], start=1):
        distance = jnp.abs(x - level)
        nearer = distance < best
        best = jnp.where(nearer, distance, best)
        code = jnp.where(nearer, jnp.uint8(i), code)
    return code


def _decoded(codes: Array, scale: Array, zero: Array | None, weight: Weight) -> Array:
    if weight == "nf4":
        levels = jnp.asarray(NF4, jnp.float32)[codes.astype(jnp.int32)]
    else:
        levels = codes.astype(jnp.float32)
    if zero is not None:
        levels = _spread(levels, zero.astype(jnp.float32), jnp.subtract)
    return _spread(levels, scale.astype(jnp.float32), jnp.multiply)


def _bits(dtype: Any) -> Literal[4] | int:
    return 4 if str(dtype) in ("int4", "uint4") else dtype.itemsize * 8


def _refused_group(shape: tuple[int, ...], group: int | None) -> str:
    inputs = shape[-2]
    divisors = [d for d in range(2, inputs + 1) if inputs % d == 0]
    near = sorted(sorted(divisors, key=lambda d: abs(d - (group or inputs)))[:3])
    return (
        f"group must divide the inputs K of w [*b, K, N], got group={group}, K={inputs}, "
        f"shape={tuple(shape)}; write group={' or '.join(map(str, near)) or None}"
    )
