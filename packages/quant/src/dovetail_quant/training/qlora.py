# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters on a quantized model: y = x W + alpha / rank (x A) B, training A and B alone.

The codes of W stay unchanged, whatever method made them (QLoRA, arXiv:2305.14314, equation 5). An
adapter replaces the product in the module's attribute and calls it. The kernel keeps its path, and
no float copy of it is made, forward or backward.

    from dovetail_quant import qlora

`insert` adds adapters, `remove` takes them away, `merge` adds them to the weights.
"""

import dataclasses
import string
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Key

from dovetail_quant._patterns import Patterns, name_of
from dovetail_quant.matmul.rows import wide
from dovetail_quant.sites.kernel import Axes, Kernel, Promote, split_equation
from dovetail_quant.sites.modules import copied, module_at
from dovetail_quant.sites.requantize import requantized
from dovetail_quant.sites.sites import Site, sites

__all__ = ["insert", "remove", "merge", "adapters", "Adapter"]  # noqa: RUF022, in order of use


@jax.transfer_guard("allow")
def insert(
    model: nnx.Module,
    where: Patterns | None = None,
    *,
    rank: int,
    alpha: float,
    rngs: nnx.Rngs,
) -> Any:
    """Returns a new module with an adapter at each quantized site. Its products are equal bit for
    bit.

    Under jit XLA may fuse what surrounds them anew, which moves a last bit. The new module shares
    the arrays of `model`, which does not change. A is uniform in +-1/sqrt(K), drawn from
    `rngs.params`, and B is 0 (LoRA, arXiv:2106.09685, section 4.1); both are float32
    `nnx.LoRAParam`.

    Save adapters alone with `nnx.state(adapted, nnx.LoRAParam)`; restore them, over the codes
    written by `save`, with `nnx.update(qlora.insert(load(...), ...), state)`.

    Args:
        model: A quantized model.
        where: Patterns of paths. Default: every quantized `nnx.Linear`, `nnx.LinearGeneral` and
            `nnx.Einsum`. Float sites and experts (one adapter per expert) are adapted if matched.
        rank: Rank of the adapters.
        alpha: Scale; the adapter is multiplied by alpha / rank.
        rngs: Source of A.

    Raises:
        ValueError: `rank` or `alpha` is not positive, `where` matches nothing or an embedding, or a
            site is adapted already.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_quant import Spec, apply, plan, qlora
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> small = apply(model, plan(model, [("**", Spec())]))
        >>> adapted = qlora.insert(small, rank=8, alpha=16.0, rngs=nnx.Rngs(0))
        >>> [a.shape for a in jax.tree.leaves(nnx.state(adapted, nnx.LoRAParam))]
        [(64, 8), (8, 32)]
    """
    if rank < 1 or not alpha > 0:
        raise ValueError(
            f"rank must be at least 1 and alpha above 0, got rank={rank}, alpha={alpha}; write "
            "rank=8, alpha=16.0"
        )
    by_path = sites(model)
    paths = _chosen(model, by_path, where)
    adapted = copied(model)
    for path in paths:
        module, axes = module_at(adapted, path), by_path[path].axes
        name: Any = _product(module)
        product, key = getattr(module, name), rngs.params()
        adapter = Adapter(product, axes, name=name, rank=rank, alpha=alpha, key=key)
        setattr(module, name, nnx.data(adapter))
    return adapted


def remove(model: nnx.Module) -> Any:
    """Returns the model without its adapters: the modules and arrays that `insert` was given.

    Raises:
        ValueError: The model has no adapter.

    Example:

        >>> from dovetail_quant import Spec, apply, plan, qlora
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> small = apply(model, plan(model, [("**", Spec())]))
        >>> adapted = qlora.insert(small, rank=8, alpha=16.0, rngs=nnx.Rngs(0))
        >>> qlora.remove(adapted).kernel[...] == small.kernel[...]
        True
    """
    plain = copied(model)
    for path, adapter in _required(model).items():
        _restore(module_at(plain, path), adapter.name, adapter.product)
    return plain


@jax.transfer_guard("allow")
def merge(model: nnx.Module, *, dtype: DTypeLike | None = None, codes: bool = False) -> Any:
    """Returns a model without adapters whose weights are W + alpha / rank A B.

    W is decoded from its codes, and the sum is in float32. By default an adapted site becomes
    float, with JAX's own product: codes have no room for A B without another rounding. `apply` can
    quantize it again, after calibration if its method needs one.

    Args:
        model: A model from `insert`.
        dtype: Dtype of the float weights. Default: that of the kernel before quantization.
        codes: Round adapted sites to nearest instead, to codes of their own spec, as `requantize`
            does. Divisors of x (AWQ, SmoothQuant) stay. Adapted float sites stay float.

    Raises:
        ValueError: The model has no adapter.

    Example:

        >>> from dovetail_quant import Spec, apply, plan, qlora
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> small = apply(model, plan(model, [("**", Spec())]))
        >>> adapted = qlora.insert(small, rank=8, alpha=16.0, rngs=nnx.Rngs(0))
        >>> merged, again = qlora.merge(adapted), qlora.merge(adapted, codes=True)
        >>> merged.kernel[...].dtype, again.kernel[...]
        (dtype('float32'), Kernel([64, 32] as int8 in groups of 64))
    """
    merged, by_path = copied(model), sites(model)
    for path, adapter in _required(model).items():
        module, parameter = module_at(merged, path), by_path[path].parameter
        variable = getattr(module, parameter)
        kernel = variable.get_value()
        whole = adapter.axes.unfold(_sum(adapter, kernel))
        _restore(module, adapter.name, adapter.product)
        if not isinstance(kernel, Kernel):
            variable.set_value(whole.astype(dtype or kernel.dtype))
        elif codes:
            variable.set_value(requantized(kernel, whole, path))
        else:
            value = whole.astype(dtype or kernel.dtype)
            setattr(module, parameter, nnx.Param(value, **variable.get_metadata()))
            by_default = isinstance(module, nnx.LinearGeneral)  # None is its dot_general
            _restore(module, adapter.name, None if by_default else _FLOAT[adapter.name])
            if isinstance(getattr(module, "promote_dtype", None), Promote):
                module.promote_dtype = module.promote_dtype.before
    return merged


def adapters(model: nnx.Module) -> "dict[str, Adapter]":
    """Returns the adapters by the path of their site, in the order of the model."""
    by_path = {}
    for path, module in nnx.iter_modules(model):
        adapter = getattr(module, _product(module) or "", None)
        if isinstance(adapter, Adapter):
            by_path[name_of(path)] = adapter
    return by_path


class Adapter(nnx.Module):
    """A module's product plus alpha / rank (x A) B.

    A is [K, rank], or [E, K, rank] for experts; B is [rank, N], or [E, rank, N]. Several input or
    output axes are folded. The sum is in float32 or wider, in the dtype of the product's result.

    Args:
        product: The module's product; None for JAX's own, as a module has it.
        axes: Axes of its kernel.
        name: Path of the site, for errors.
        rank: Rank.
        alpha: Scale.
        key: Random key of A.
    """

    def __init__(
        self,
        product: Callable[..., Any] | None,
        axes: Axes,
        *,
        name: str,
        rank: int,
        alpha: float,
        key: Key[Array, ""],
    ):
        count, inputs, outputs = axes.sizes
        stack = (count,) if axes.batch else ()
        bound = inputs**-0.5
        first = jax.random.uniform(key, (*stack, inputs, rank), jnp.float32, -bound, bound)
        self.a = nnx.LoRAParam(first)
        self.b = nnx.LoRAParam(jnp.zeros((*stack, rank, outputs), jnp.float32))
        self.product, self.axes, self.name, self.scale = product, axes, name, alpha / rank

    def __call__(self, *args: Any, **options: Any) -> Array:
        product = jax.lax.dot_general if self.product is None else self.product
        y = product(*args, **options)
        low_rank = {"einsum_op": self._einsum, "ragged_dot": self._ragged_dot}
        delta = low_rank.get(self.name, self._dot_general)(*args)
        place = options.get("out_sharding")
        delta = delta if place is None else jax.sharding.reshard(delta, place)
        return (y.astype(delta.dtype) + self.scale * delta).astype(y.dtype)

    def _factors(self, x: Array) -> tuple[Array, Array, Array]:
        """Returns x, A with the input axes of the kernel, B with its output axes, in one dtype."""
        shape, dtype = self.axes.shape, wide(x.dtype)
        inputs = [shape[axis] for axis in self.axes.inputs]
        outputs = [shape[axis] for axis in self.axes.outputs]
        a = self.a[...].reshape(*inputs, -1)
        b = self.b[...].reshape(-1, *outputs)
        return x.astype(dtype), a.astype(dtype), b.astype(dtype)

    def _dot_general(self, x: Array, _: Any, dimension_numbers: Any, *rest: Any) -> Array:
        x, a, b = self._factors(x)
        ours, theirs = dimension_numbers[0]
        order = [ours[list(theirs).index(axis)] for axis in self.axes.inputs]
        return jnp.tensordot(jnp.tensordot(x, a, (order, list(range(len(order))))), b, 1)

    def _einsum(self, equation: str, x: Array, *rest: Any) -> Array:
        x, a, b = self._factors(x)
        left, right, out = split_equation(equation)
        low = next(c for c in string.ascii_letters if c not in equation)
        inputs = "".join(right[axis] for axis in self.axes.inputs)
        outputs = "".join(right[axis] for axis in self.axes.outputs)
        kept = "".join(c for c in left if c not in inputs) + low
        narrow = jnp.einsum(f"{left},{inputs}{low}->{kept}", x, a)
        return jnp.einsum(f"{kept},{low}{outputs}->{out}", narrow, b)

    def _ragged_dot(self, x: Array, _: Any, sizes: Any, *rest: Any) -> Array:
        dtype = wide(x.dtype)
        a, b = self.a[...].astype(dtype), self.b[...].astype(dtype)
        return jax.lax.ragged_dot(jax.lax.ragged_dot(x.astype(dtype), a, sizes), b, sizes)


# The products of float modules, by the attribute that holds them.
_FLOAT: dict[str, Callable[..., Any]] = {
    "dot_general": jax.lax.dot_general,
    "einsum_op": jnp.einsum,
    "ragged_dot": jax.lax.ragged_dot,
}


def _restore(module: Any, name: str, product: Any) -> None:
    """Puts a product in the place of an adapter; NNX would go on to treat the attribute as data."""
    mark: Any = nnx.data if isinstance(product, nnx.Module) else nnx.static
    setattr(module, name, mark(product))


def _required(model: nnx.Module) -> dict[str, Adapter]:
    by_path = adapters(model)
    if not by_path:
        raise ValueError(
            f"the model must have adapters, got a {type(model).__name__} without any; add some "
            "with qlora.insert(model, rank=8, alpha=16.0, rngs=rngs), or use it unchanged"
        )
    return by_path


def _sum(adapter: Adapter, kernel: Any) -> Array:
    """Returns W + alpha / rank A B in float32, folded as A B is."""
    if isinstance(kernel, Kernel):
        kernel = dataclasses.replace(kernel, dtype=jnp.float32).dequantize()
    a, b = (factor[...].astype(jnp.float32) for factor in (adapter.a, adapter.b))
    low_rank = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return adapter.axes.fold(kernel.astype(jnp.float32)) + adapter.scale * low_rank


def _chosen(model: nnx.Module, found: Mapping[str, Site], where: Patterns | None) -> list[str]:
    """Returns the paths to adapt."""
    paths, named = [], sites(model, where=where)
    for path, site in found.items():
        module = module_at(model, path)
        product = _product(module)
        quantized = isinstance(getattr(module, site.parameter).get_value(), Kernel)
        if where is None:
            wanted = quantized and product in ("dot_general", "einsum_op")
        else:
            wanted = path in named
        if not wanted:
            continue
        if product is None or not (quantized or site.left_alone is None):
            alone = None if quantized else site.left_alone
            why = alone or "it is an embedding"
            raise ValueError(
                f"an adapter needs a product that it can stand for, got {path!r}: {why}; write "
                "where= such that it does not match"
            )
        if isinstance(getattr(module, product), Adapter):
            raise ValueError(
                f"a site has one adapter, got {path!r}, which has its own; train that one, or "
                "write qlora.insert(qlora.remove(model), ...)"
            )
        paths.append(path)
    if not paths:
        raise ValueError(
            "an adapter needs a quantized nnx.Linear, nnx.LinearGeneral or nnx.Einsum, got none "
            f"among {', '.join(list(found)[:5])}; call apply first, or name sites with where="
        )
    return paths


def _product(module: Any) -> str | None:
    """Returns the attribute with the product of a module that can be adapted."""
    if isinstance(module, nnx.Einsum):
        return "einsum_op"
    if isinstance(module, nnx.Linear | nnx.LinearGeneral):
        return "dot_general"
    return "ragged_dot" if callable(getattr(module, "ragged_dot", None)) else None
