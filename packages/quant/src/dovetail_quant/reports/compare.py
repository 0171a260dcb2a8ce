# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A float model that also computes, at each site, the quantized result.

Each site's product is called twice with the same x, with the float weight and with the codes; the
model continues with the float result. Each site is therefore judged alone, on its inputs in the
float model, with its own product: rounded activations count.

It yields two measures. Forward, sums of |z - y|^2 and |y|^2. Backward, of any loss, the sum over
rows of (g . (z - y))^2 with g = dloss/dy. If the loss is -log p of labels drawn from the model
itself, half of this sum is, to second order, the rise of the model's divergence from itself due to
the site's codes: the expectation of g g^T is the Fisher information of y.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_quant.calibrating.recorder import counted
from dovetail_quant.sites.embed import lookup
from dovetail_quant.sites.kernel import (
    Kernel,
    QuantizedParam,
    dot_general,
    einsum,
    ragged_dot,
    split_equation,
)
from dovetail_quant.sites.modules import copied, held, module_at, replace
from dovetail_quant.sites.sites import sites

# Which of the arguments of a product is the weight.
_WEIGHT = {"dot_general": 1, "einsum_op": 2, "ragged_dot": 1, "lookup": 0}
_OPERATIONS = {
    "dot_general": dot_general,
    "einsum_op": einsum,
    "ragged_dot": ragged_dot,
    "lookup": lookup,
}
_CALLED: dict[str | None, tuple[str, ...]] = {
    "linear": ("dot_general",),
    "general": ("dot_general",),
    "einsum": ("einsum_op",),
    "experts": ("ragged_dot",),
    "embed": ("lookup", "dot_general"),
}


class Sums(nnx.Variable):
    """[sum of |z - y|^2, sum of |y|^2] of a site, over the rows that count."""


class Slope(nnx.Variable):
    """0, whose gradient is the sum over rows of (g . (z - y))^2 of a site."""


class Compared(nnx.Module):
    """A site's product that returns y and measures z against it.

    Args:
        product: The product of the float module.
        name: Path of the site.
        kernel: Its codes.
    """

    def __init__(self, product: Callable[..., Any], name: str, kernel: Kernel):
        self.product, self.name = product, name
        self.kernel = QuantizedParam(kernel)
        self.sums, self.slope = Sums(jnp.zeros(2)), Slope(jnp.zeros(()))

    def __call__(self, *args: Any, **options: Any) -> Any:
        y = self.product(*args, **options)
        given = list(args)
        given[_WEIGHT[self.name]] = self.kernel.get_value()
        z = _OPERATIONS[self.name](*given, **options)
        return _measured(self, y, z, outputs=self._outputs(args, y.ndim))

    def _outputs(self, args: tuple[Any, ...], ndim: int) -> tuple[int, ...]:
        """Returns the axes of y that are outputs of the site; the others are rows."""
        if self.name == "einsum_op":
            _, right, out = split_equation(args[0])
            return tuple(out.index(right[axis]) for axis in self.kernel.get_value().axes.outputs)
        many = len(self.kernel.get_value().axes.outputs) if self.name == "dot_general" else 1
        return tuple(range(ndim - many, ndim))


class ComparedEmbed(nnx.Module):
    """`Compared` for `nnx.Embed`, which multiplies in its own code."""

    def __init__(self, before: nnx.Embed, after: nnx.Module):
        self.before, self.after = before, after
        self.sums, self.slope = Sums(jnp.zeros(2)), Slope(jnp.zeros(()))

    def __call__(self, *args: Any, **options: Any) -> Array:
        after: Any = self.after
        y = self.before(*args, **options)
        return _measured(self, y, after(*args, **options), outputs=(y.ndim - 1,))

    def attend(self, *args: Any, **options: Any) -> Array:
        after: Any = self.after
        y = self.before.attend(*args, **options)
        return _measured(self, y, after.attend(*args, **options), outputs=(y.ndim - 1,))


def compared(model: nnx.Module, quantized: nnx.Module) -> nnx.Module:
    """Returns a copy of `model` with every quantized site of `quantized` compared.

    Raises:
        ValueError: A quantized site is not a site of `model`, or has another shape.
    """
    by_path, codes = sites(model), quantized_kernels(quantized)
    for path, kernel in codes.items():
        site = by_path.get(path)
        if site is None or site.left_alone or site.axes.shape != kernel.shape:
            raise ValueError(
                "the models must be one before and after quantization, got a quantized "
                f"{path!r} of shape {list(kernel.shape)} that is no such site of the other; pass "
                "the model that apply was given"
            )
    listening = copied(model)
    for path, kernel in codes.items():
        module = module_at(listening, path)
        if isinstance(module, nnx.Embed):
            replace(listening, path, ComparedEmbed(module, module_at(quantized, path)))
            continue
        for name in _CALLED[by_path[path].kind]:
            setattr(module, name, nnx.data(Compared(held(module, name), name, kernel)))
    return listening


def quantized_kernels(model: nnx.Module) -> dict[str, Kernel]:
    """Returns the codes of every quantized site, by path."""
    kernels = {}
    for path, site in sites(model).items():
        value = getattr(module_at(model, path), site.parameter).get_value()
        if isinstance(value, Kernel):
            kernels[path] = value
    return kernels


def by_site(state: Any) -> dict[str, Array]:
    """Adds up every `Sums`, or `Slope`, of a compared model over the products of each site."""
    totals: dict[str, Array] = {}
    for path, variable in nnx.to_flat_state(state):
        above = path[:-2] if path[-2] in _WEIGHT else path[:-1]
        site, value = ".".join(map(str, above)), variable.get_value()
        totals[site] = totals[site] + value if site in totals else value
    return totals


def _measured(self: Any, y: Array, z: Array, *, outputs: tuple[int, ...]) -> Array:
    """Returns y and records z against it. `outputs` are the axes of y that are not rows."""
    exact = jax.lax.stop_gradient(y).astype(jnp.float32)
    delta = jax.lax.stop_gradient(z).astype(jnp.float32) - exact
    squares = jnp.stack([jnp.sum(delta**2, outputs), jnp.sum(exact**2, outputs)])
    weights = counted(squares.shape[1:])
    if weights is not None:
        squares = jnp.where(weights[None] > 0, squares * weights[None], 0)
    total = squares.sum(tuple(range(1, squares.ndim)))
    self.sums.set_value(self.sums.get_value() + total)
    return _tapped(y, delta, self.slope.get_value(), outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _tapped(
    y: Float[Array, "..."], delta: Float[Array, "..."], slope: Float[Array, ""], outputs: Any
) -> Float[Array, "..."]:
    return y


def _tapped_forward(y: Array, delta: Array, slope: Array, outputs: Any) -> tuple[Array, Array]:
    return y, delta


def _tapped_backward(outputs: Any, delta: Array, g: Array) -> tuple[Array, Array, Array]:
    along = jnp.sum(g.astype(jnp.float32) * delta, outputs)
    return g, jnp.zeros_like(delta), jnp.sum(along**2)


_tapped.defvjp(_tapped_forward, _tapped_backward)
