# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: `y = x W + scale * (x A) B` with A and B trained alone (LoRA, 2106.09685).

An adapted projection is an explicit module at the same path, with the kernel at the same path, so
files, shardings and quantizers find what they found before; A and B appear beside it. The
alternatives, a wrapper with the projection inside or an interception of calls, move the kernel or
hide the adapter.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import DTypeLike

from dovetail_models._patterns import Patterns
from dovetail_models.surgery.adapter import LoraLinear as LoraLinear
from dovetail_models.surgery.adapter import adapted, plain, without
from dovetail_models.surgery.adapter import adapters as adapters
from dovetail_models.surgery.peft import load_peft as load_peft
from dovetail_models.surgery.peft import save_peft as save_peft
from dovetail_models.surgery.place import build
from dovetail_models.surgery.replace import Model, replace


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
    """A new model with an adapter on each matched `nnx.Linear`; its logits do not change by a bit.

    A is uniform in ±1/sqrt(in), as in PEFT, drawn from `rngs.params` (advanced once per layer), and
    B is 0. Both have `dtype`, or else that of the kernel, and lie on the kernel's mesh. They are of
    type `nnx.LoRAParam`, so that they can be trained alone:

    >>> model = lora.insert(model, "layers.*.attn.{q,v}", rank=8, alpha=16, rngs=nnx.Rngs(0))
    >>> grads = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(model, batch)

    Raises ValueError for a pattern that matches nothing, a layer that has an adapter, and a match
    that is no `nnx.Linear`.
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


def merge(model: Model) -> Model:
    """A new model of plain linear layers: each kernel W becomes `W + scale * A B`.

    Computed in float32, then in the kernel's dtype. Raises ValueError if nothing has an adapter.
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
    """A new model without its adapters: the one before `insert`.

    Raises ValueError if nothing has an adapter.
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
