# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantized training: products of codes in the forward pass and in both of the backward pass.

`qat` rounds weights and activations, and multiplies floats. Here the operands of all three products
are codes: y = x w, dx = dy w transposed, dw = x transposed dy. Sums of integers are int32, those of
fp8 float32. The gradient dy is rounded with one scale for each row in dx and for each column in dw.
Before that it is multiplied by the scales of the other operand, which lie along the sum, as Qwix
does. Codes in groups have scales along another axis, so with `group` the float operand is
multiplied instead.

Rounding dy to nearest is biased where most of it is small. Stochastic rounding is not: it adds
uniform noise in [-1/2, 1/2) steps before it rounds. The noise is a hash of the place, the bits of
dy and the seed. It needs no state, and a resumed run repeats it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from dovetail_quant.codes.codes import absmax, outside, quantize
from dovetail_quant.codes.spec import Act, Spec
from dovetail_quant.matmul.act import rounded_groups
from dovetail_quant.matmul.w8a8 import rounded
from dovetail_quant.sites import kernel
from dovetail_quant.sites.kernel import Kernel
from dovetail_quant.sites.plan import Plan
from dovetail_quant.sites.sites import sites
from dovetail_quant.training.qat import Product, installed

Gradient = Literal["int8", "fp8", "fp8_e5m2"]
_GRADIENTS: dict[Gradient, tuple[Any, float]] = {
    "int8": (jnp.int8, 127.5),
    "fp8": (jnp.float8_e4m3fn, 448.0),
    "fp8_e5m2": (jnp.float8_e5m2, 57344.0),
}
_LEAST_SCALE = float(np.sqrt(np.finfo(np.float32).tiny))
_EXACT = jax.lax.Precision.HIGHEST


def qt(
    model: nnx.Module,
    plan: Plan,
    *example: Any,
    gradients: Gradient,
    stochastic: bool = False,
    seed: int = 0,
    **example_options: Any,
) -> Any:
    """Returns a new module that trains with products of codes, forward and backward.

    It shares the arrays of `model`, which does not change. `freeze` quantizes the trained module.

    Args:
        model: The float model.
        plan: A plan of this model: method absmax, symmetric int8, int4 or fp8 with `act`, no
            embeddings.
        example: As in `qat`.
        gradients: Codes of dy. "fp8" is float8_e4m3fn, "fp8_e5m2" float8_e5m2.
        stochastic: Round dy stochastically. Only for gradients="int8".
        seed: Seed of the noise.
        example_options: As in `qat`.

    Raises:
        ValueError: As `qat`, and for specs or options other than those above.

    Example:

        >>> from dovetail_quant import Spec, plan, qt
        >>> model, x = nnx.Linear(64, 32, rngs=nnx.Rngs(0)), jnp.ones((3, 64))
        >>> int8 = plan(model, [("**", Spec(act="int8"))])
        >>> trained = qt(model, int8, x, gradients="int8", stochastic=True)
        >>> nnx.grad(lambda m: m(x).sum())(trained)["kernel"].shape
        (64, 32)
    """
    if gradients not in _GRADIENTS:
        raise ValueError(
            f"gradients must be one of {', '.join(_GRADIENTS)}, got gradients={gradients!r}; write "
            "gradients='int8', or qat(model, plan, ...) for float gradients"
        )
    if stochastic and gradients != "int8":
        raise ValueError(
            f"integers are rounded stochastically, got stochastic=True with gradients="
            f"{gradients!r}; write gradients='int8', or leave stochastic out"
        )
    by_path = sites(model)
    for path, spec in plan.specs.items():
        if path in by_path and by_path[path].kind == "embed":
            raise ValueError(
                f"a lookup has no product to quantize, got the embedding {path!r} in the plan; "
                "leave it out, or write qat(model, plan, ...)"
            )
        if spec.act is None or not spec.symmetric:
            raise ValueError(
                f"operands of quantized training are symmetric codes, got {spec} for {path!r}; "
                "write Spec(act='int8'), or qat(model, plan, ...)"
            )

    def product(before: Callable[..., Any], how: Any) -> Product:
        matmul = CodesProduct(spec=how.spec, gradients=gradients, stochastic=stochastic, seed=seed)
        return TrainedProduct(before=before, how=how, matmul=matmul)

    return installed(model, plan, example, example_options, product=product)


class Codes(NamedTuple):
    """A rounded operand: values [R, K] or [K, N], and scales [R, G] or [G, N]."""

    values: Array
    scales: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodesProduct:
    """x w of rounded operands, with a gradient of rounded operands. It fits in a `Kernel`.

    Attributes:
        spec: Codes of x and w.
        gradients: Codes of dy.
        stochastic: Round dy stochastically.
        seed: Seed of the noise.
    """

    spec: Spec
    gradients: Gradient
    stochastic: bool
    seed: int

    @property
    def act(self) -> Act | None:
        """`Spec.act`."""
        return self.spec.act

    def prepare(self, w: Any) -> Any:
        """Returns w: it stays float and is rounded in each call."""
        return w

    def codes(self, prepared: Any) -> Any:
        """Returns the codes of w."""
        return quantize(prepared, self.spec)

    def __call__(self, x: Float[Array, "*batch K"], prepared: Any) -> Float[Array, "*batch N"]:
        """Returns x w in the dtype of x."""
        y: Any = _product(x.reshape(-1, x.shape[-1]), prepared, self)
        return y.reshape(*x.shape[:-1], prepared.shape[-1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedProduct(Product):
    """The module's product by codes."""

    matmul: CodesProduct

    def __call__(self, *args: Any, **options: Any) -> Any:
        at = 1 if self.how.kind == "einsum" else 0
        x, weight, *rest = args[at:]
        self.how.check(weight)
        whole = Kernel(
            prepared=self.how.axes.fold(weight),
            scale=None,
            axes=self.how.axes,
            spec=self.how.spec,
            matmul=self.matmul,
            dtype=weight.dtype,
        )
        operation: Callable[..., Any] = {
            "einsum": kernel.einsum,
            "experts": kernel.ragged_dot,
        }.get(self.how.kind or "", kernel.dot_general)
        return operation(*args[:at], x, whole, *rest, **options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Float[Array, "R K"], w: Float[Array, "K N"], how: CodesProduct) -> Array:
    return _forward(x, w, how)[0]


def _forward(x: Array, w: Array, how: CodesProduct) -> tuple[Array, Any]:
    codes = _rows(x, how.spec), _columns(w, how.spec)
    left, right = codes
    groups = right.scales.shape[0]
    per_group = jax.lax.dot_general(
        left.values.reshape(len(x), groups, -1),
        right.values.reshape(groups, -1, w.shape[1]),
        (((2,), (1,)), ((1,), (0,))),
        preferred_element_type=_sum_of(right.values),
    )  # [G, R, N]
    scaled = per_group.astype(jnp.float32) * left.scales.T[..., None] * right.scales[:, None]
    return scaled.sum(0).astype(x.dtype), (x, w, *codes)


def _backward(how: CodesProduct, kept: Any, dy: Array) -> tuple[Array, Array]:
    x, w, left, right = kept
    g = dy.astype(jnp.float32)
    if right.scales.shape[0] > 1:
        wide_x, wide_w = (a.astype(jnp.float32) for a in (x, w))
        dx = jnp.matmul(_levels(g, 1, how), wide_w.T, precision=_EXACT)
        dw = jnp.matmul(wide_x.T, _levels(g, 0, how), precision=_EXACT)
    else:
        rows = _gradient(g * right.scales, 1, how)
        dx = _dot(rows.values, right.values, (1, 1)) * rows.scales
        columns = _gradient(g * left.scales, 0, how)
        dw = _dot(left.values, columns.values, (0, 0)) * columns.scales
    beyond = outside(w, how.spec)
    dw = dw if beyond is None else jnp.where(beyond, 0, dw)
    return dx.astype(x.dtype), dw.astype(w.dtype)


_product.defvjp(_forward, _backward)


def _rows(x: Array, spec: Spec) -> Codes:
    """Returns x rounded as `spec.act` says; one scale per row and group of w."""
    groups = x.shape[1] // (spec.group or x.shape[1])
    if spec.act == "int8":
        values, step = rounded(x)
        return Codes(values, jnp.broadcast_to(step, (len(x), groups)))
    assert spec.act is not None
    values, scales = rounded_groups(x, spec.act, groups=groups)
    return Codes(values.astype(jnp.int8) if spec.act == "int4" else values, scales)


def _columns(w: Array, spec: Spec) -> Codes:
    q = quantize(w, spec)
    return Codes(q.qvalue.astype(jnp.int8) if spec.weight == "int4" else q.qvalue, q.scale)


def _gradient(g: Float[Array, "R N"], axis: int, how: CodesProduct) -> Codes:
    """Returns g rounded with one scale along an axis: 1 for each row, 0 for each column.

    Args:
        g: The gradient.
        axis: Axis of the sum.
        how: Codes, rounding and seed.
    """
    dtype, most = _GRADIENTS[how.gradients]
    scale = absmax(g, axis=axis, keepdims=True) / most
    scale = jnp.where(scale < _LEAST_SCALE, 1.0, scale)
    steps = g / scale
    if how.gradients != "int8":
        return Codes(jnp.clip(steps, -most, most).astype(dtype), scale)
    if how.stochastic:
        steps = steps + noise(g, seed=how.seed + axis)
    return Codes(jnp.clip(jnp.round(steps), -128, 127).astype(dtype), scale)


def _levels(g: Array, axis: int, how: CodesProduct) -> Array:
    codes = _gradient(g, axis, how)
    return codes.values.astype(jnp.float32) * codes.scales


def noise(g: Float[Array, "R N"], *, seed: int) -> Float[Array, "R N"]:
    """Returns uniform numbers in [-1/2, 1/2): a hash of the place, the bits of g and the seed.

    The finalizer of MurmurHash3 (Appleby 2016) mixes 32 bits.
    """
    place = jax.lax.broadcasted_iota(jnp.uint32, g.shape, 0) * jnp.uint32(g.shape[1])
    place = place + jax.lax.broadcasted_iota(jnp.uint32, g.shape, 1)
    h = jax.lax.bitcast_convert_type(g.astype(jnp.float32), jnp.uint32)
    for salt in (place * jnp.uint32(0x9E3779B9), jnp.uint32(seed % 2**32)):
        h = h ^ salt
        h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
        h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
        h = h ^ (h >> 16)
    return (h >> 8).astype(jnp.float32) * np.float32(2.0**-24) - np.float32(0.5)


def _dot(left: Array, right: Array, axes: tuple[int, int]) -> Array:
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    kind = _sum_of(left)
    return jax.lax.dot_general(left, right, numbers, preferred_element_type=kind).astype(
        jnp.float32
    )


def _sum_of(values: Array) -> Any:
    """Returns the dtype of exact sums: int32 for integers, float32 for fp8."""
    return jnp.int32 if values.dtype == jnp.int8 else jnp.float32
