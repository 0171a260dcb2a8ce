# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: `y = x W + scale * (x A) B`, with only A and B trained (LoRA, 2106.09685).

An adapted projection is an explicit module at the same path. Its kernel keeps its path too, so
files, shardings and quantizers still apply; A and B appear beside it. The alternatives, a wrapper
around the projection or an interception of calls, move the kernel or hide the adapter.

`stack` serves several adapters in one batch: each row chooses its own.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import DTypeLike

from dovetail_models import _elsewhere
from dovetail_models._patterns import Patterns
from dovetail_models.adapters.adapter import LoraLinear, adapted, adapters, plain, without
from dovetail_models.adapters.place import build
from dovetail_models.layers.stacked import LoraStack
from dovetail_models.surgery.peft import load_peft, save_peft
from dovetail_models.surgery.replace import Model, replace
from dovetail_models.surgery.stack import stack

__all__ = [  # noqa: RUF022, in order of use
    "insert",
    "merge",
    "remove",
    "adapters",
    "save_peft",
    "load_peft",
    "stack",
    "LoraLinear",
    "LoraStack",
]


@jax.transfer_guard("allow")
@_elsewhere.insert
def insert(
    model: Model,
    where: Patterns,
    *,
    rank: int,
    alpha: float | int,
    rngs: nnx.Rngs,
    dtype: DTypeLike | None = None,
    rslora: bool = False,
) -> Model:
    """Returns a model with an adapter on each matched `nnx.Linear`. Its logits do not change by a
    bit.

    A is uniform in ±1/sqrt(in), as in PEFT, and B is 0. Both lie on the kernel's mesh. Their type
    is `nnx.LoRAParam`: pass `wrt=nnx.LoRAParam` to train them alone.

    Args:
        model: The model.
        where: Patterns of module paths.
        rank: Columns of A, at least 1.
        alpha: The scale is alpha / rank.
        rngs: Random streams. `params` advances once per layer.
        dtype: dtype of A and B. Default: the kernel's.
        rslora: The scale is alpha / sqrt(rank) (2312.03732).

    Raises:
        ValueError: The rank is below 1, a pattern matches nothing, or a match has an adapter or is
            no `nnx.Linear`.

    Example:

        >>> from flax import nnx
        >>> from dovetail_models import abstract, llama, lora
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32))
        >>> model = lora.insert(model, "layers.*.attn.{q,v}", rank=2, alpha=4, rngs=nnx.Rngs(0))
        >>> model.layers[0].attn.q.lora_a.shape
        (16, 2)
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got rank={rank}. Use rank=8, for example.")

    def adapt(path: str, base: nnx.Module) -> nnx.Module:
        like = plain(path, base).kernel.get_value()
        kind = like.dtype if dtype is None else dtype
        wide, narrow, bound = like.shape[0], like.shape[1], like.shape[0] ** -0.5
        shape, key = (wide, rank), rngs.params()

        def draw(key: jax.Array) -> jax.Array:
            return jax.random.uniform(key, shape, jnp.float32, -bound, bound).astype(kind)

        a = build(draw, key, like=like, dims=(0, None))
        b = build(lambda: jnp.zeros((rank, narrow), kind), like=like, dims=(None, 1))
        return adapted(plain(path, base), a, b, alpha=alpha, rslora=rslora)

    return replace(model, where, adapt)


@jax.transfer_guard("allow")
def merge(model: Model) -> Model:
    """Returns a model of plain linear layers: each kernel W becomes `W + scale * A B`.

    The sum is computed in float32 and rounded to the kernel's dtype.

    Raises:
        ValueError: The model has no adapter.

    Example:

        >>> from flax import nnx
        >>> from dovetail_models import abstract, llama, lora
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32))
        >>> model = lora.insert(model, "**.q", rank=2, alpha=4, rngs=nnx.Rngs(0))
        >>> type(lora.merge(model).layers[0].attn.q).__name__
        'Linear'
    """

    def fold(adapter: LoraLinear) -> nnx.Param:
        kernel = adapter.kernel.get_value()

        def sum_of(kernel: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
            a, b = a.astype(jnp.float32), b.astype(jnp.float32)
            product = jnp.matmul(a, b, precision="highest")
            return (kernel.astype(jnp.float32) + adapter.scale * product).astype(kernel.dtype)

        operands = kernel, adapter.lora_a.get_value(), adapter.lora_b.get_value()
        adapter.kernel.set_value(build(sum_of, *operands, like=kernel))
        return adapter.kernel

    return _without(model, fold)


def remove(model: Model) -> Model:
    """Returns the model without its adapters, as it was before `insert`.

    Raises:
        ValueError: The model has no adapter.

    Example:

        >>> from flax import nnx
        >>> from dovetail_models import abstract, llama, lora
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32))
        >>> model = lora.insert(model, "**.q", rank=2, alpha=4, rngs=nnx.Rngs(0))
        >>> lora.adapters(lora.remove(model))
        {}
    """
    return _without(model, lambda adapter: adapter.kernel)


def _without(model: Model, kernel: Callable[[LoraLinear], nnx.Param]) -> Model:
    sites = tuple(adapters(model))
    if not sites:
        raise ValueError(
            f"The model must have adapters, got a {type(model).__name__} without any. "
            "Add some with lora.insert, or use the model as it is."
        )

    def restore(path: str, module: nnx.Module) -> nnx.Module:
        assert isinstance(module, LoraLinear)
        return without(module, kernel(module))

    return replace(model, sites, restore)
