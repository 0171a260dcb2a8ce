# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters on a quantized model: y = x W + alpha / rank (x A) B, training A and B alone.

The codes of W stay unchanged, whatever method made them (QLoRA, arXiv:2305.14314, equation 5). An
adapter replaces the product in the module's attribute and calls it. The kernel keeps its path, and
no float copy of it is made, forward or backward.
"""

import string
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Key

from dovetail_quant._patterns import Patterns
from dovetail_quant.kernel import Axes, Kernel, split_equation
from dovetail_quant.matmul.rows import wide
from dovetail_quant.modules import copied, held, module_at
from dovetail_quant.sites import Site, sites


def qlora(
    model: nnx.Module,
    *,
    rank: int,
    alpha: float,
    rngs: nnx.Rngs,
    where: Patterns | None = None,
) -> Any:
    """Returns a new module with an adapter at each quantized site. Its results are equal bit for
    bit.

    It shares the arrays of `model`, which does not change. A is uniform in +-1/sqrt(K), drawn from
    `rngs.params`, and B is 0 (LoRA, arXiv:2106.09685, section 4.1); both are float32
    `nnx.LoRAParam`.

    Save adapters alone with `nnx.state(adapted, nnx.LoRAParam)`; restore them, over the codes
    written by `save`, with `nnx.update(qlora(load(...), ...), state)`.

    Args:
        model: A quantized model.
        rank: Rank of the adapters.
        alpha: Scale; the adapter is multiplied by alpha / rank.
        rngs: Source of A.
        where: Name patterns of paths, as in `plan`. Default: every quantized `nnx.Linear`,
            `nnx.LinearGeneral` and `nnx.Einsum`. Float sites and experts (one adapter per expert)
            are adapted if named.

    Raises:
        ValueError: `rank` or `alpha` is not positive, `where` matches nothing or an embedding, or a
            site is adapted already.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_quant import Spec, apply, plan
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> small = apply(model, plan(model, [("**", Spec())]))
        >>> adapted = qlora(small, rank=8, alpha=16.0, rngs=nnx.Rngs(0))
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
        adapter = Adapter(
            held(module, name), axes, name=name, rank=rank, alpha=alpha, key=rngs.params()
        )
        setattr(module, name, nnx.data(adapter))
    return adapted


class Adapter(nnx.Module):
    """A module's product plus alpha / rank (x A) B.

    A is [K, rank], or [E, K, rank] for experts; B is [rank, N], or [E, rank, N]. Several input or
    output axes are folded. The sum is in float32 or wider, in the dtype of the product's result.

    Args:
        product: The module's product.
        axes: Axes of its kernel.
        name: Path of the site, for errors.
        rank: Rank.
        alpha: Scale.
        key: Random key of A.
    """

    def __init__(
        self,
        product: Callable[..., Any],
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
        y = self.product(*args, **options)
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
                "call qlora on the model before"
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
