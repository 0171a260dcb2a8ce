# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion to the packed layout, from floats and from quantized integers."""

from __future__ import annotations

import functools
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import absmax, known
from dovetail_kernels.quantized.layout import PackedWeights, nibbles

# The group size of most published int4 weights; it loses little.
_GROUP_SIZE = 128
_TINY = float(np.finfo(np.float32).tiny)  # below it a scale is not normal, and XLA may flush it


@runtime_checkable
class Quantized(Protocol):
    """Weights w[D, F] = (qvalue - zero_point) scale, with the fields of `qwix.QArray`.

    Attributes:
        qvalue: [D, F] in int4, int8, uint4 or uint8.
        scale: float[G, F]. Each axis divides the one of qvalue and is repeated to it.
        zero_point: Like scale, or None for 0.
    """

    qvalue: Any
    scale: Any
    zero_point: Any


@operation
def pack_weights(
    w: Float[Array | np.ndarray, "D F"] | Quantized,
    *,
    bits: int | None = None,
    group_size: Any | None = None,
    symmetric: bool = True,
) -> PackedWeights:
    """Packs weights w[D, F] for `quantized_matmul`: (q - zero) scale, q of 8 or 4 bits.

    Args:
        w: A float array [D, F], rounded to nearest, half to even, for each output channel and group
            of inputs. Or quantized weights with qvalue, scale and zero_point (`qwix.QArray` or any
            such object), packed without rounding, in their own groups.
        bits: 8, 4, or 16 for plain bfloat16. Default: 8 for floats, those of the dtype for
            quantized weights. 4 for int8 or uint8 values is allowed if they fit; a tracer cannot be
            checked and is refused.
        group_size: Inputs per scale. Divides D, and is even for 4 bits. Default: D for 8 bits, 128
            for 4.
        symmetric: scale = max|w| / 127 (7 for 4 bits). False: scale = (max(w, 0) - min(w, 0)) / 255
            (15 for 4 bits), with a zero point.

    Returns:
        The packed weights.

    Raises:
        ValueError: Shapes, bits or values do not fit, a float w is not finite (unchecked if
            traced), or `group_size` or `symmetric=False` is given with quantized weights.
        TypeError: w is neither an array nor has the fields of `Quantized`, or a dtype is neither
            float nor an integer of at most 8 bits.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import pack_weights
        >>> packed = pack_weights(jnp.array([[7.0, -2.0], [-3.0, 14.0]]), bits=4, group_size=2)
        >>> packed.values.tolist(), packed.scales.tolist()
        ([[95], [247]], [[1.0], [2.0]])
    """
    if bits not in (None, 4, 8, 16):
        raise ValueError(f"pack_weights needs bits 4, 8 or 16, got bits={bits}. Use one of them.")
    if not isinstance(w, jax.Array | np.ndarray):
        if not isinstance(w, Quantized):
            raise TypeError(
                "pack_weights needs a float array [D, F], or an object with qvalue, scale and "
                "zero_point, "
                f"got {type(w).__name__}. Use jnp.asarray, or types.SimpleNamespace."
            )
        return _quantized(w, bits=bits, group_size=group_size, symmetric=symmetric)
    _check_float(w, group_size=group_size, symmetric=symmetric, bits=bits)
    if bits == 16:
        return PackedWeights(values=jnp.asarray(w).T.astype(jnp.bfloat16), bits=16)
    bits = bits or 8
    default = w.shape[0] if bits == 8 else _GROUP_SIZE
    size = default if group_size is None else group_size
    _check_group(w.shape[0], size, bits=bits)
    return _rounded(jnp.asarray(w), bits=bits, size=size, symmetric=symmetric)


@functools.partial(jax.jit, static_argnames=("bits", "size", "symmetric"))
def _rounded(w: Array, *, bits: int, size: Any, symmetric: bool) -> PackedWeights:
    inputs, outputs = w.shape
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    grouped = w.T.astype(jnp.float32).reshape(outputs, inputs // size, size)
    if symmetric:
        scales = absmax(grouped, axis=2) / high
        zeros = jnp.zeros_like(scales)
    else:
        least = jnp.minimum(jnp.min(grouped, axis=2), 0)
        # Half of each, because their difference may pass the largest float.
        finite = absmax(grouped, axis=2) < jnp.inf  # the maximum alone loses NaN
        most = jnp.where(finite, jnp.max(grouped, axis=2), jnp.inf)
        scales = (jnp.maximum(most, 0) / 2 - least / 2) / ((high - low) / 2)
        zeros = low - jnp.round(least / jnp.where(scales < _TINY, 1, scales))
    scales = jnp.where(scales < _TINY, 0, scales)
    steps = grouped / jnp.where(scales == 0, 1, scales)[:, :, None] + zeros[:, :, None]
    # Scale and zero point are rounded themselves: the ends of a range may pass it by a half.
    q = jnp.clip(jnp.round(steps), low, high)
    q = jnp.where(scales[:, :, None] == 0, zeros[:, :, None], q)
    q = q.astype(jnp.int8).reshape(outputs, inputs)
    values = q if bits == 8 else nibbles(q, group_size=size)
    return PackedWeights(
        values=values, scales=scales, zeros=None if symmetric else zeros, bits=bits
    )


def _quantized(
    w: Quantized, *, bits: int | None, group_size: Any | None, symmetric: bool
) -> PackedWeights:
    if group_size is not None or not symmetric:
        raise ValueError(
            "pack_weights keeps the groups and zero points of weights that are quantized already, "
            "got "
            f"group_size={group_size}, symmetric={symmetric}. Leave them out."
        )
    q, own = w.qvalue, {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
    if str(q.dtype) not in own:
        raise TypeError(
            f"pack_weights needs a qvalue of {', '.join(own)}, got {q.dtype}. Use "
            ".astype(jnp.int8) if its "
            "values fit."
        )
    stored = own[str(q.dtype)]
    bits = bits or stored
    if q.ndim != 2 or bits == 16:
        raise ValueError(
            f"pack_weights needs a qvalue [D, F] and bits 4 or 8, got qvalue of shape {q.shape}, "
            f"bits={bits}. Use jax.vmap for stacked weights, and a float array for bits=16."
        )
    scales, zeros = _by_group(w)
    _check_group(q.shape[0], q.shape[0] // scales.shape[1], bits=bits)
    values = jnp.asarray(q).astype(jnp.uint8 if str(q.dtype).startswith("u") else jnp.int8).T
    if values.dtype == jnp.uint8:
        middle = 2 ** (bits - 1)
        _check_range(q, 0, 2 * middle - 1, bits=bits, stored=stored)
        # Wraps modulo 256, which gives the signed value.
        values = jax.lax.bitcast_convert_type(values - jnp.uint8(middle), jnp.int8)
        zeros = jnp.zeros_like(scales) - middle if zeros is None else zeros - middle
    else:
        _check_range(q, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, bits=bits, stored=stored)
    if bits == 4:
        values = nibbles(values, group_size=values.shape[1] // scales.shape[1])
    return PackedWeights(values=values, scales=scales, zeros=zeros, bits=bits)


def _by_group(w: Quantized) -> tuple[Array, Array | None]:
    """Returns scales and zero points as float32[F, G], with as many groups as the finer of them."""
    shape = w.qvalue.shape
    given = [a for a in (w.scale, w.zero_point) if a is not None]
    for name, array in zip(("scale", "zero_point"), given, strict=False):
        fits = array.ndim == 2 and all(n % m == 0 for n, m in zip(shape, array.shape, strict=True))
        if not fits:
            raise ValueError(
                f"pack_weights needs a {name} [G, F] whose axes divide those of qvalue [D, F] = "
                f"{tuple(shape)}, got {name} of shape {tuple(array.shape)}. Use .reshape."
            )
    groups = max(array.shape[0] for array in given)
    if any(groups % array.shape[0] for array in given):
        raise ValueError(
            "pack_weights needs groups of scale and of zero_point that divide each other, got "
            f"{[array.shape[0] for array in given]}. Use jnp.repeat on both."
        )

    def repeated(array: Any) -> Array:
        wide = jnp.asarray(array).astype(jnp.float32).T
        wide = jnp.repeat(wide, shape[1] // wide.shape[0], axis=0)
        return jnp.repeat(wide, groups // wide.shape[1], axis=1)

    zeros = None if w.zero_point is None else repeated(w.zero_point)
    return repeated(w.scale), zeros


def _check_float(w: Any, *, group_size: Any | None, symmetric: bool, bits: int | None) -> None:
    if not jnp.issubdtype(w.dtype, jnp.floating):
        raise TypeError(
            f"pack_weights needs float weights, got an array of {w.dtype}. Use "
            "types.SimpleNamespace(qvalue=w, scale=scale, zero_point=None) for quantized ones."
        )
    if w.ndim != 2 or 0 in w.shape:
        raise ValueError(
            f"pack_weights needs w [D, F] with neither 0, got shape {tuple(w.shape)}. Use "
            "jax.vmap(pack_weights) "
            "for stacked weights."
        )
    if bits == 16 and (group_size is not None or not symmetric):
        raise ValueError(
            "pack_weights rounds to bfloat16 for bits=16, without groups, got "
            f"group_size={group_size}, "
            f"symmetric={symmetric}. Leave them out."
        )
    if bits == 16 or isinstance(w, Tracer):
        return
    with jax.ensure_compile_time_eval():  # jax.jit may have captured w
        finite = bool(jnp.all(jnp.isfinite(jnp.asarray(w))))
    if not finite:
        raise ValueError(
            "pack_weights needs finite weights, got w with inf or nan. Use jnp.nan_to_num(w) if "
            "they may "
            "be replaced."
        )


def _check_group(inputs: Any, size: Any, *, bits: int) -> None:
    if size > 0 and inputs % size == 0 and not (bits == 4 and size % 2):
        return
    raise ValueError(
        f"pack_weights needs a group_size that divides D{', and is even' if bits == 4 else ''}, "
        "got "
        f"group_size={size}, D={inputs}, bits={bits}. Use another group_size=, or pad D of w and "
        "of x with zeros."
    )


def _check_range(q: Any, low: int, high: int, *, bits: int, stored: int) -> None:
    if bits >= stored:
        return
    values = known(q)
    if values is None:
        raise ValueError(
            f"pack_weights cannot see whether traced {q.dtype} values fit bits={bits}, got a "
            "tracer. Call "
            "pack_weights outside jit, or use .astype(jnp.int4) or uint4 before."
        )
    least, most = int(values.min()), int(values.max())
    if least < low or most > high:
        raise ValueError(
            f"pack_weights needs values in {low}..{high} for bits={bits}, got {least}..{most}. "
            "Use bits=8."
        )
