# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training: a float model whose sites round like their quantized form.

A site keeps its float parameter under its path. The product in its module's attribute rounds
weights to the levels of the spec, and rows of x if the spec says so; gradients pass unchanged (the
straight-through estimator, arXiv:1308.3432). Checkpoints, optimizers and shardings of the float
model therefore fit, and `freeze` reads the plan from the products.

Weights round like in `qwix.QtProvider`, bit for bit if it and the spec agree. It is not used
itself, because frozen sites would differ from trained ones (qwix 0.1.8): it rounds in the dtype of
the product, where bfloat16 moves codes; it groups only the last of several input axes; its
asymmetric ranges contain 0; its steps of x are per group and spread over 127.5; its gradient in x
is that of unrounded weights; it leaves lookups float, and mistakes x for the weight if both have
one shape.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_quant.codes.codes import dequantize, outside, quantize
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.act import levels
from dovetail_quant.matmul.api import MatmulOption
from dovetail_quant.matmul.w8a8 import rounded
from dovetail_quant.sites.apply import apply
from dovetail_quant.sites.kernel import Axes, split_equation
from dovetail_quant.sites.modules import copied, held, module_at
from dovetail_quant.sites.plan import Plan
from dovetail_quant.sites.sites import Kind, Site, sites


def qat(model: nnx.Module, plan: Plan, *example: Any, **example_options: Any) -> Any:
    """Returns a new module that computes with rounded weights and trains them.

    It shares the arrays of `model`, which does not change.

    Args:
        model: The float model.
        plan: A plan of this model, with method absmax.
        example: Arguments of a call of the model: arrays or `jax.ShapeDtypeStruct`. Nothing is
            computed, but every site of the plan must be called, so none silently stays float.
        example_options: Keyword arguments of that call.

    Raises:
        ValueError: The plan belongs to another model or has another method, the example does not
            call a site, a site trains already, or a module of experts casts its kernel.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_quant import Spec, freeze, plan, qat
        >>> model, x = nnx.Linear(64, 32, rngs=nnx.Rngs(0)), jnp.ones((3, 64))
        >>> trained = qat(model, plan(model, [("**", Spec(weight="int4", group=32))]), x)
        >>> bool(jnp.allclose(freeze(trained)(x), trained(x), rtol=1e-5, atol=1e-5))
        True
    """
    return installed(model, plan, example, example_options, product=_float_product)


def installed(
    model: nnx.Module, plan: Plan, args: Any, options: Any, *, product: "MakeProduct"
) -> Any:
    """Returns a new module whose sites round as the plan says.

    Args:
        model: The float model.
        plan: A plan of it.
        args: Arguments of a call that comes to every site.
        options: Its keyword arguments.
        product: Makes the product of a site from the module's own and the rounding.

    Raises:
        ValueError: See `qat`.
    """
    by_path = sites(model)
    _check(plan, by_path)
    trained = copied(model)
    for path, spec in plan.specs.items():
        site = by_path[path]
        how = Rounding(kind=site.kind, axes=site.axes, dtype=site.dtype, spec=spec)
        module = module_at(trained, path)
        for name, function in _operations(module, how, product).items():
            if isinstance(function.before, Product | Table | Uncast):
                raise ValueError(
                    f"a site is trained once, got {path!r}, which rounds already; write "
                    "freeze(model) first, or train this model as it is"
                )
            setattr(module, name, function)
    _check_reached(trained, plan, args, options)
    return trained


@jax.transfer_guard("allow")
def freeze(model: nnx.Module, *, matmul: MatmulOption = "auto") -> Any:
    """Returns the quantized module, as from `apply`, of a module from `qat`.

    Their results differ by float rounding alone: of sums, and of weights cast to activations'
    dtypes narrower than float32.

    Args:
        model: A module from `qat`.
        matmul: As in `apply`.

    Raises:
        ValueError: `model` does not come from `qat`.
    """
    plain, specs = copied(model), {}
    for path, module in nnx.iter_modules(plain):
        for name, value in list(vars(module).items()):
            if isinstance(value, Product | Table | Uncast):
                setattr(module, name, value.before)
            if isinstance(value, Product | Table):
                specs[".".join(map(str, path))] = value.how.spec
    if not specs:
        raise ValueError(
            "freeze takes a model whose sites round as they train, got none; write "
            "freeze(qat(model, plan, x)), or apply(model, plan) for a float model"
        )
    return apply(plain, Plan(specs=specs, left_alone={}), matmul=matmul)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def nearest(w: Float[Array, "*b K N"], spec: Spec) -> Float[Array, "*b K N"]:
    """Returns the levels nearest to w, in its dtype. The derivative is the identity, and 0 for
    weights beyond the range of `clip` or `rms`.
    """
    return dequantize(quantize(w, spec)).astype(w.dtype)


@nearest.defjvp
def _nearest_jvp(spec: Spec, primals: Any, tangents: Any) -> tuple[Any, Any]:
    beyond = outside(primals[0], spec)
    tangent = tangents[0] if beyond is None else jnp.where(beyond, 0, tangents[0])
    return nearest(*primals, spec), tangent


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def nearest_rows(x: Float[Array, "..."], axes: tuple[int, ...], spec: Spec) -> Float[Array, "..."]:
    """Returns x rounded as `spec.act` says; the derivative is the identity.

    Args:
        x: Activations.
        axes: Axes of the inputs, in their order in the kernel.
        spec: The codes. "int8" rounds to round(x / step) step, step = max|x| / 127 over `axes`.
    """
    rest = tuple(axis for axis in range(x.ndim) if axis not in axes)
    moved = x.transpose(*rest, *axes)
    rows = moved.reshape(-1, math.prod(x.shape[axis] for axis in axes))
    if spec.act == "int8":
        q, step = rounded(rows)
        near = q.astype(jnp.float32) * step
    else:
        assert spec.act is not None
        near = levels(rows, spec.act, groups=rows.shape[1] // (spec.group or rows.shape[1]))
    order = (*rest, *axes)
    near = near.astype(x.dtype).reshape(moved.shape)
    return near.transpose([order.index(axis) for axis in range(x.ndim)])


@nearest_rows.defjvp
def _nearest_rows_jvp(
    axes: tuple[int, ...], spec: Spec, primals: Any, tangents: Any
) -> tuple[Any, Any]:
    return nearest_rows(*primals, axes, spec), tangents[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounding:
    """The rounding of a site. It has no path, so equal layers stay equal and can be scanned.

    Attributes:
        kind: How the module multiplies.
        axes: Axes of its kernel.
        dtype: Dtype of its kernel.
        spec: The codes.
    """

    kind: Kind | None
    axes: Axes
    dtype: str
    spec: Spec

    def weight(self, kernel: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the kernel, rounded."""
        self.check(kernel)
        return self.axes.unfold(nearest(self.axes.fold(kernel), self.spec))

    def check(self, kernel: Float[Array, "..."]) -> None:
        """Raises ValueError unless the kernel has its own dtype."""
        if str(kernel.dtype) != self.dtype:
            raise ValueError(
                f"a kernel must be rounded in its own dtype, got {kernel.dtype} of one that is "
                f"{self.dtype}, because its module casts it before the product; keep it in "
                f"{kernel.dtype}, or write a rule (site, None)"
            )

    def rows(self, x: Float[Array, "..."], axes: Sequence[int]) -> Float[Array, "..."]:
        """Returns x, rounded if the spec rounds activations."""
        return x if self.spec.act is None else nearest_rows(x, tuple(axes), self.spec)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """The module's product, with a rounded kernel, and rounded x if the spec says so."""

    before: Callable[..., Any]
    how: Rounding

    def __call__(self, *args: Any, **options: Any) -> Any:
        kind = self.how.kind
        at = 1 if kind == "einsum" else 0
        x, kernel, *rest = args[at:]
        if kind == "einsum":
            left, right, _ = split_equation(args[0])
            contracted = [left.index(right[axis]) for axis in self.how.axes.inputs]
        else:
            contracted = (1,) if kind == "experts" else self._ordered(*rest[0][0])
        w = self.how.weight(kernel)
        if kind in ("linear", "general", "einsum"):
            w = w.astype(x.dtype)  # which `Uncast` left as it was
        return self.before(*args[:at], self.how.rows(x, contracted), w, *rest, **options)

    def _ordered(self, ours: Sequence[int], theirs: Sequence[int]) -> list[int]:
        """Returns the contracted axes of x in the order of the kernel's inputs."""
        return [ours[list(theirs).index(axis)] for axis in self.how.axes.inputs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uncast:
    """The module's dtype promotion, without the kernel: it is cast after rounding."""

    before: Callable[..., Any]

    def __call__(self, args: Sequence[Any], **options: Any) -> tuple[Any, ...]:
        x, kernel, *rest = args
        promoted = self.before((x, jnp.zeros((), kernel.dtype), *rest), **options)
        return (promoted[0], kernel, *promoted[2:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """An embedding's operation on its table, cast or lookup, with a rounded table.

    `nnx.Embed` casts (table,) for a lookup, (query, table) for a product; others call `lookup`.
    """

    before: Callable[..., Any]
    how: Rounding

    def __call__(self, args: Any, *rest: Any, **options: Any) -> Any:
        if rest:
            return self.before(self.how.weight(args), *rest, **options)
        *query, table = args
        *query, table = self.before((*query, self.how.weight(table)), **options)
        return (*(self.how.rows(q, (q.ndim - 1,)) for q in query), table)


MakeProduct: TypeAlias = Callable[[Callable[..., Any], Rounding], Product]


def _float_product(before: Callable[..., Any], how: Rounding) -> Product:
    return Product(before=before, how=how)


def _operations(module: Any, how: Rounding, product: MakeProduct) -> dict[str, Any]:
    """Returns the attributes of a module that use its parameter, wrapped with rounding."""
    if how.kind == "embed":
        if isinstance(module, nnx.Embed):
            return {"promote_dtype": Table(before=module.promote_dtype, how=how)}
        return {
            "lookup": Table(before=module.lookup, how=how),
            "dot_general": product(module.dot_general, how),
        }
    name = {"einsum": "einsum_op", "experts": "ragged_dot"}.get(how.kind or "", "dot_general")
    products = {name: product(held(module, name), how)}
    if how.kind == "experts":
        return products
    return {**products, "promote_dtype": Uncast(before=module.promote_dtype)}


def _check(plan: Plan, found: dict[str, Site]) -> None:
    for path, spec in plan.specs.items():
        if path not in found or found[path].left_alone:
            raise ValueError(
                f"a plan must be of the model that is trained, got {path!r}, which is no float "
                "site of this one; call plan(model, rules)"
            )
        if spec.method != "absmax":
            raise ValueError(
                f"what is trained finds its own rounding, got method={spec.method!r} for "
                f"{path!r}; write method='absmax'"
            )


def _check_reached(model: nnx.Module, plan: Plan, args: Any, options: Any) -> None:
    """Raises unless every site is called: a class may multiply in its own code."""
    reached = set()

    def note(path: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            reached.add(path)
            return function(*args, **options)

        return call

    noted = copied(model)
    for path in plan.specs:
        module = module_at(noted, path)
        for name, value in list(vars(module).items()):
            if isinstance(value, Product | Table):
                setattr(module, name, note(path, value))
    # Arrays alone are traced; other options, as flags, stay what they are.
    leaves, treedef = jax.tree.flatten((args, options))
    arrays = {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")}

    def call(arrays: dict[int, Any]) -> Any:
        filled = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, options = jax.tree.unflatten(treedef, filled)
        return noted(*args, **options)

    nnx.eval_shape(call, arrays)
    left = [path for path in plan.specs if path not in reached]
    if left:
        raise ValueError(
            f"the example must come to every site of the plan, got one that misses {left[0]!r} "
            f"and so {len(left)} of {len(plan.specs)}; give one that does, or write a rule "
            f"({left[0]!r}, None)"
        )
