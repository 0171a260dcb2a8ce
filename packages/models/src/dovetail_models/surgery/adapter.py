# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The linear layer with a low-rank adapter, and where in a model there are any."""

import functools
import math
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.shard import named
from dovetail_models.surgery.paths import select
from dovetail_models.surgery.place import Leaf

_LINEAR = ("kernel", "bias", "in_features", "out_features", "use_bias", "dtype", "param_dtype")
_LINEAR += ("precision", "dot_general", "promote_dtype", "preferred_element_type")


class LoraLinear(nnx.Linear):
    """A linear layer and its adapter: `lora_a` [in, rank] and `lora_b` [rank, out].

    `kernel`, `bias` and all else is taken over from `base`. The adapter adds
    `scale * (x lora_a) lora_b`, with scale `alpha / rank`, or `alpha / sqrt(rank)` if `rslora`
    (2312.03732). Products of the adapter are in its own dtype, or in `dtype` if that is set.
    """

    def __init__(
        self,
        base: nnx.Linear,
        *,
        lora_a: nnx.LoRAParam,
        lora_b: nnx.LoRAParam,
        alpha: float | int,
        rslora: bool,
    ):
        _take_over(self, base)
        self.lora_a = lora_a
        self.lora_b = lora_b
        self.alpha = alpha
        self.rslora = rslora

    @property
    def rank(self) -> int:
        """Number of columns of `lora_a`."""
        return self.lora_a.shape[1]

    @property
    def scale(self) -> float:
        """The factor on the product of the adapter."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def __call__(
        self, inputs: Float[Array, "*batch in"], out_sharding: Any = None
    ) -> Float[Array, "*batch out"]:
        """The base's output, in its dtype, with the adapter's added."""
        out = super().__call__(inputs, out_sharding)
        kind = self.dtype or self.lora_a.dtype
        x, a, b = (v.astype(kind) for v in (inputs, self.lora_a[...], self.lora_b[...]))
        dot = functools.partial(jnp.matmul, precision=self.precision)
        return out + dot(self.scale * dot(x, a), b).astype(out.dtype)


def adapters(model: nnx.Module) -> dict[str, LoraLinear]:
    """{path: layer} of the layers that have an adapter, in the order of the tree."""
    modules = select(model, "**").items()
    return {path: module for path, module in modules if isinstance(module, LoraLinear)}


def plain(path: str, module: nnx.Module) -> nnx.Linear:
    """`module` if an adapter can go there; ValueError if it cannot."""
    if isinstance(module, LoraLinear):
        raise ValueError(
            f"A layer takes one adapter, got path={path!r}, which has one of rank={module.rank}. "
            "Fold it in first with lora.merge(model), or drop it with lora.remove(model)."
        )
    if type(module) is not nnx.Linear:
        raise ValueError(
            f"An adapter goes on an nnx.Linear, got path={path!r}, a {type(module).__name__}. "
            "Narrow the pattern, as in 'layers.*.attn.{q,k,v,o}'."
        )
    return module


def adapted(base: nnx.Linear, a: Leaf, b: Leaf, *, alpha: float | int, rslora: bool) -> LoraLinear:
    """`base` with an adapter of these arrays, named for the mesh as the kernel is."""
    names = base.kernel.get_metadata("out_sharding", None)
    a_meta, b_meta = {}, {}
    # A layer of someone else's module need not have names.
    if names is not None:
        units = base.kernel.get_metadata("units")
        a_meta = named(names[0], "rank", units=(units[0], 1))
        b_meta = named("rank", names[1], units=(1, units[1]))
    return LoraLinear(
        base,
        lora_a=nnx.LoRAParam(a, **a_meta),
        lora_b=nnx.LoRAParam(b, **b_meta),
        alpha=alpha,
        rslora=rslora,
    )


def without(adapter: LoraLinear, kernel: nnx.Param) -> nnx.Linear:
    """The plain layer that the adapter was put on, with this kernel."""
    size = adapter.in_features, adapter.out_features
    # A layer of no arrays, with the graph that Flax gives it.
    linear = nnx.eval_shape(lambda: nnx.Linear(*size, use_bias=adapter.use_bias, rngs=nnx.Rngs(0)))
    _take_over(linear, adapter)
    linear.kernel = kernel
    return linear


def _take_over(linear: nnx.Linear, base: nnx.Linear) -> None:
    """Give `linear` all that an `nnx.Linear` holds from `base`."""
    for name in _LINEAR:
        value = getattr(base, name)
        # Flax marks the place of a bias that is missing; an unmarked None is another graph.
        setattr(linear, name, nnx.data(None) if name == "bias" and value is None else value)
