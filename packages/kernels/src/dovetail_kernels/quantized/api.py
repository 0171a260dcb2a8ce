# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Product of activations and quantized weights: the call, its checks, and its implementations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from dovetail_kernels import dispatch
from dovetail_kernels.argument_names import operation
from dovetail_kernels.derivatives import UNPACKED, first_order, reverse_mode
from dovetail_kernels.dispatch import Implementation
from dovetail_kernels.mesh import per_shard
from dovetail_kernels.quantized import blocks, costs, native, reference, scaled, split
from dovetail_kernels.quantized.call import QuantizedMatmulCall, QuantizedMatmulInputs
from dovetail_kernels.quantized.layout import PackedArrays, PackedWeights
from dovetail_kernels.quantized.rows import accumulator

Activations = Literal["int8"]


@operation
def quantized_matmul(
    x: Float[Array | np.ndarray, "M D"],
    w: PackedArrays,
    *,
    activations: Activations | None = None,
    impl: dispatch.Impl | None = None,
) -> Float[Array, "M F"]:
    """Computes y = x w with packed weights w = (q - zero) scale.

    With eps of the accumulator's dtype, |y - x w| <= eps ((D + 8) sum |x||w| + max|x| sum |w|)
    before y is rounded to its dtype, for each row of x by itself. A row with inf or nan gives inf
    or nan throughout. Under `jax.vmap` over x alone, rows are gathered into one product.

    Args:
        x: Activations [M, D], floating point. On an Explicit mesh M may be sharded, D not. M may be
            symbolic (`jax.export.symbolic_shape`); it then counts as many rows.
        w: `PackedWeights`, or another library's packed weights with the same arrays
            (`PackedArrays`), used without a copy. F may be sharded.
        activations: "int8" rounds each row of x to round(x / s) s with s = max|x| / 127 in float32
            and multiplies integers ("W8A8"). Its gradient treats the rounding as the identity.
            None: no rounding.
        impl: "native", "split", "blocks", "scaled", "reference" or an
            `implementations.Implementation`, or several in order of preference. Default: the best
            without a refusal; see `explain(quantized_matmul, x, w)`. "native" is on CPUs only: a
            program that `jax.export` lowers for another platform has jnp's product there, and an
            export for a CPU needs impl=("split", "blocks").

    Returns:
        y [M, F] in x's dtype, accumulated in float32 (float64 for float64 x). Differentiable in x
        only, once, in reverse mode: dx = dy wᵀ with w as packed. `x @ unpack_weights(w)` has
        forward mode (`jax.jvp`, `jax.jacfwd`) and second derivatives.

    Raises:
        ValueError: Shapes or bits do not fit, an option is unknown, `impl` refuses the call, or a
            gradient of the arrays of w is requested.
        TypeError: x is not floating point, or w does not have the fields of `PackedWeights`.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import pack_weights, quantized_matmul
        >>> w = pack_weights(jnp.array([[127.0, 3.0], [-64.0, 127.0]]), bits=8)
        >>> quantized_matmul(jnp.array([[1.0, 2.0]]), w).tolist()
        [[-1.0, 257.0]]
    """
    plan = plan_quantized_matmul(x, w, activations=activations, impl=impl)
    product = functools.partial(_run, plan.choose(), plan.call)
    return per_shard(
        "quantized_matmul",
        product,
        (jnp.asarray(x), w.values, w.scales, w.zeros),
        ("md", "fd", "fg", "fg"),
        out="mf",
        may="mf",
        instead="Use jax.sharding.reshard to split x along M and w along F only.",
    )


def plan_quantized_matmul(
    x: Any,
    w: PackedArrays,
    *,
    activations: Activations | None = None,
    impl: dispatch.Impl | None = None,
) -> dispatch.Plan[QuantizedMatmulCall]:
    """Returns the plan of `quantized_matmul` with these arguments, from shapes and dtypes alone.

    Args:
        x: Activations [M, D]: an array or anything with a shape and a dtype.
        w: Packed weights.
        activations: "int8" or None.
        impl: Implementations, in order of preference.

    Raises:
        ValueError: Shapes or bits do not fit, or `activations` is unknown.
        TypeError: x is not floating point, or w does not have the fields of `PackedWeights`.
    """
    _check(x, w, activations=activations)
    device = dispatch.device(x, w.values)
    call = QuantizedMatmulCall(
        rows=x.shape[0],
        inputs=x.shape[1],
        outputs=w.values.shape[-2],
        dtype=np.dtype(x.dtype),
        bits=w.bits,
        groups=1 if w.scales is None else w.scales.shape[-1],
        asymmetric=w.zeros is not None,
        activations=activations,
        device=device,
    )
    return dispatch.Plan(
        operation="quantized_matmul",
        call=call,
        device=device,
        implementations=[IMPLEMENTATIONS[name] for name in _preferred(call)],
        impl=impl,
        arrays=(x, w.values),
    )


def _preferred(call: QuantizedMatmulCall) -> tuple[str, ...]:
    """Returns the names of implementations, best first.

    XLA for a TPU fuses dequantization. For a GPU it fuses conversions alone, but everything for one
    row; nibbles are written for "scaled", so one row of 4 bits is for "reference". On a CPU,
    splitting multiplies the rows. With many rows and more than one term of each, that costs more
    than it saves in reading weights. On 2 Sapphire Rapids cores, with matrix instructions for int8,
    it is faster up to 256 rows; without those instructions the limit is lower.
    """
    if call.device.platform != "cpu":
        if call.activations:
            return ("split", "reference", "blocks", "native", "scaled")
        fused = ("reference", "split", "blocks", "native")
        nibbles = call.bits == 4 and isinstance(call.rows, int) and call.rows == 1
        first = call.device.platform == "gpu" and not nibbles
        return ("scaled", *fused) if first else (*fused, "scaled")
    many = not isinstance(call.rows, int) or call.rows > 32  # a symbolic number counts as many
    if many and costs.terms(call) > 1:
        return ("native", "blocks", "reference", "split", "scaled")
    return ("native", "split", "blocks", "reference", "scaled")


def _check(x: Any, w: PackedArrays, *, activations: str | None) -> None:
    if not isinstance(w, PackedArrays):
        raise TypeError(
            f"quantized_matmul needs w as PackedWeights, got {type(w).__name__}. Use "
            "pack_weights(w, bits=8)."
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"quantized_matmul needs a floating x [M,D], got dtype={x.dtype}. Use "
            "x.astype(jnp.float32)."
        )
    if w.bits not in (4, 8, 16) or w.in_features != w.values.shape[-1] * (1 + (w.bits == 4)):
        raise ValueError(
            "quantized_matmul needs integers of 4 or 8 bits, with even groups for 4, or bfloat16, "
            f"got bits={w.bits}, D={w.in_features}, w.values of shape {tuple(w.values.shape)}. Use "
            "pack_weights(w, bits=8)."
        )
    if w.values.ndim != 2:
        raise ValueError(
            "quantized_matmul needs the weights of one matrix, w.values [F,D], got w.values of "
            f"shape {tuple(w.values.shape)}. Use jax.vmap(quantized_matmul) for stacked ones."
        )
    if len(x.shape) != 2 or x.shape[1] != w.in_features or x.shape[0] == 0:
        raise ValueError(
            f"quantized_matmul needs x [M,D] with M > 0 and D={w.in_features} as w has, got x of "
            f"shape {tuple(x.shape)}. Use x.reshape(-1, {w.in_features}) if it has more axes."
        )
    if activations not in (None, "int8"):
        raise ValueError(
            f"activations must be None or 'int8', got activations={activations!r}. Leave it out to "
            "keep x as it is."
        )
    if activations and w.bits == 16:
        raise ValueError(
            "activations='int8' needs integer weights, got w of bits=16. Use pack_weights(w, "
            "bits=8), or "
            "leave activations out."
        )


# Compiled once for eager calls. A gradient of an eager shard_map needs it too: JAX has no rule for
# its own symbolic zeros there.
@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _run(
    implementation: Implementation,
    call: QuantizedMatmulCall,
    x: Array,
    values: Array,
    scales: Array | None,
    zeros: Array | None,
) -> Array:
    packed = PackedWeights(values=values, scales=scales, zeros=zeros, bits=call.bits)
    local = dataclasses.replace(call, rows=x.shape[0], outputs=values.shape[0])
    return _product(implementation, local, reverse_mode("quantized_matmul", x), packed)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(
    implementation: Implementation, call: QuantizedMatmulCall, x: Array, packed: PackedWeights
) -> Array:
    """Computes y. The gradient dequantizes the weights by blocks or whole."""
    inputs = QuantizedMatmulInputs(x, packed)
    return dispatch.run("quantized_matmul", implementation, call, inputs)


def _forward(
    implementation: Implementation, call: QuantizedMatmulCall, x: Any, packed: PackedWeights
) -> tuple[Array, PackedWeights]:
    """Returns y and the residuals.

    Each array is a CustomVJPPrimal: a value, and whether it is differentiated.
    """
    if any(leaf.perturbed for leaf in jax.tree.leaves(packed, is_leaf=_is_primal)):
        raise ValueError(
            "quantized_matmul has a gradient in x alone, got one asked in the arrays of w. Use "
            "jax.lax.stop_gradient(w), or x @ unpack_weights(w) to train scales."
        )
    whole = jax.tree.map(lambda leaf: leaf.value, packed, is_leaf=_is_primal)
    return _product(implementation, call, _once(x.value), whole), whole


_once = functools.partial(first_order, "quantized_matmul", UNPACKED)


def _is_primal(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)


def _backward(
    implementation: Implementation, call: QuantizedMatmulCall, packed: PackedWeights, dy: Any
) -> tuple[Array | None, None]:
    if isinstance(dy, jax.custom_derivatives.SymbolicZero):
        return None, None
    wide = accumulator(jnp.asarray(_once(dy)))
    by_blocks = call.device.platform == "cpu" and _refuse_blocks(call) is None
    with jax.named_scope("quantized_matmul"):
        dx = blocks.backward(wide, packed) if by_blocks else reference.backward(wide, packed)
    return dx.astype(dy.dtype), None


_product.defvjp(_forward, _backward, symbolic_zeros=True)


def _any(call: QuantizedMatmulCall) -> None:
    return None


def _refuse_blocks(call: QuantizedMatmulCall) -> str | None:
    # And jax 0.10.2 converts bfloat16 whole before a loop that slices it.
    return "bfloat16 weights have nothing to dequantize by blocks" if call.bits == 16 else None


def _refuse_split(call: QuantizedMatmulCall) -> str | None:
    if call.groups > 1:
        return (
            f"adds up whole channels, and these have {call.groups} groups with scales of their own"
        )
    if call.activations is None and call.dtype == np.float64:
        return "terms of its rows hold float32, not float64"
    if call.bits != 16 and call.inputs > split.LONGEST:
        return f"its int32 sums hold D up to {split.LONGEST}, not D={call.inputs}"
    return None


def _refuse_native(call: QuantizedMatmulCall) -> str | None:
    if call.device.platform != "cpu":
        return f"is for a CPU, not {call.device.platform}"
    if not isinstance(call.rows, int) or call.rows > native.ROWS:
        return f"is for at most {native.ROWS} rows, not {call.rows}"
    if call.dtype == np.float64:
        return "accumulates in float32, not float64"
    size = call.inputs // call.groups
    whole = native.WIDTH * (2 if call.bits == 4 else 1)
    if size % whole:
        return f"groups of {call.bits} bits must be multiples of {whole}, not {size}"
    if (devices := blocks.auto_devices()) > 1:
        return f"XLA gathers all weights for its call on a mesh with Auto axes of {devices} devices"
    return native.unavailable()


def _refuse_scaled(call: QuantizedMatmulCall) -> str | None:
    if call.activations:
        return "multiplies rows as they are, not rounded ones"
    if call.asymmetric and call.dtype.itemsize > 2:
        return f"adds up integers and zero points apart, which cancels digits of {call.dtype.name}"
    many = not isinstance(call.rows, int) or call.rows > scaled.MOST_GROUPED_ROWS
    if call.groups > 1 and many and call.dtype != jnp.bfloat16:
        return (
            f"writes sums of {call.groups} groups, which pays up to {scaled.MOST_GROUPED_ROWS} "
            f"rows of {call.dtype.name}, not {call.rows}"
        )
    return None


def _run_of(
    multiply: Callable[..., Array],
) -> Callable[[QuantizedMatmulCall, QuantizedMatmulInputs], Array]:
    def run(call: QuantizedMatmulCall, inputs: QuantizedMatmulInputs) -> Array:
        return multiply(*inputs, activations=call.activations)

    return run


IMPLEMENTATIONS = {
    name: dispatch.Implementation(name=name, refuse=refuse, work=work, run=_run_of(multiply))
    for name, refuse, work, multiply in (
        ("native", _refuse_native, costs.native_work, native.run),
        ("split", _refuse_split, costs.split_work, split.run),
        ("blocks", _refuse_blocks, costs.blocks_work, blocks.run),
        ("scaled", _refuse_scaled, costs.scaled_work, scaled.run),
        ("reference", _any, costs.reference_work, reference.run),
    )
}
