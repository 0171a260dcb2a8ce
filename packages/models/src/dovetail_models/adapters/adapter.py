# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The linear layer with a low-rank adapter, and the search for such layers in a model."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.adapters.paths import select
from dovetail_models.adapters.place import Leaf
from dovetail_models.layers.linear import take_over
from dovetail_models.placing.shard import named


class LoraLinear(nnx.Linear):
    """A linear layer with an adapter: `lora_a` [in, rank] and `lora_b` [rank, out].

    Adds `scale * (x lora_a) lora_b` to the output, with `scale = alpha / rank`; if `rslora`,
    `scale = alpha / sqrt(rank)` (2312.03732). The adapter computes in its own dtype, or in `dtype`
    if it is set.

    Args:
        base: The layer. Its kernel, bias and settings are taken over.
        lora_a: A, [in, rank].
        lora_b: B, [rank, out].
        alpha: Numerator of the scale.
        rslora: Divide by the root of the rank.
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
        take_over(self, base)
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
        """Factor on the adapter's product."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def __call__(
        self, inputs: Float[Array, "*batch in"], out_sharding: Any = None
    ) -> Float[Array, "*batch out"]:
        """Returns the sum of the base's output and the adapter's, in the dtype of the first."""
        out = super().__call__(inputs, out_sharding)
        kind = self.dtype or self.lora_a.dtype
        x, a, b = (v.astype(kind) for v in (inputs, self.lora_a[...], self.lora_b[...]))
        dot = functools.partial(jnp.matmul, precision=self.precision)
        return out + dot(self.scale * dot(x, a), b).astype(out.dtype)


def adapters(model: nnx.Module) -> dict[str, LoraLinear]:
    """Returns {path: layer} of the layers with an adapter, in the order of the tree.

    Example:

        >>> from flax import nnx
        >>> from dovetail_models import abstract, llama, lora
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32))
        >>> model = lora.insert(model, "**.{q,v}", rank=2, alpha=4, rngs=nnx.Rngs(0))
        >>> list(lora.adapters(model))
        ['layers.0.attn.q', 'layers.0.attn.v']
    """
    modules = select(model, "**").items()
    return {path: module for path, module in modules if isinstance(module, LoraLinear)}


def linear(path: str, module: nnx.Module) -> nnx.Linear:
    """Returns `module` if it is a linear layer without an adapter, of floats or of codes.

    Raises:
        ValueError: It has an adapter, or is no `nnx.Linear`.
    """
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


def plain(path: str, module: nnx.Module) -> nnx.Linear:
    """Returns `module` if it is a linear layer without an adapter, of floats.

    Raises:
        ValueError: It has an adapter or codes, or is no `nnx.Linear`.
    """
    layer = linear(path, module)
    kernel = layer.kernel.get_value()
    if not isinstance(kernel, jax.Array | jax.ShapeDtypeStruct):
        raise ValueError(
            f"An adapter goes on a float kernel, got path={path!r} with {kernel!r:.200}. Insert it "
            "before quantizing, or use the quantizer's own: dovetail_quant.qlora.insert."
        )
    return layer


def adapted(base: nnx.Linear, a: Leaf, b: Leaf, *, alpha: float | int, rslora: bool) -> LoraLinear:
    """Returns `base` with an adapter of these arrays.

    The logical names of A and B follow those of the kernel.

    Args:
        base: The layer.
        a: A, [in, rank].
        b: B, [rank, out].
        alpha: Numerator of the scale.
        rslora: Divide alpha by the root of the rank instead of the rank.
    """
    a_meta, b_meta = half_names(base)
    return LoraLinear(
        base,
        lora_a=nnx.LoRAParam(a, **a_meta),
        lora_b=nnx.LoRAParam(b, **b_meta),
        alpha=alpha,
        rslora=rslora,
    )


def half_names(base: nnx.Linear) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the metadata of A [in, rank] and of B [rank, out], after that of the kernel."""
    names = base.kernel.get_metadata("out_sharding", None)
    if names is None:  # a layer of a foreign module
        return {}, {}
    units = base.kernel.get_metadata("units")
    a = named(names[0], "rank", units=(units[0], 1))
    return a, named("rank", names[1], units=(1, units[1]))


def without(adapter: nnx.Linear, kernel: nnx.Param) -> nnx.Linear:
    """Returns the plain layer below `adapter`, with this kernel."""
    size = adapter.in_features, adapter.out_features
    # A layer without arrays, with Flax's own graph.
    layer = nnx.eval_shape(lambda: nnx.Linear(*size, use_bias=adapter.use_bias, rngs=nnx.Rngs(0)))
    take_over(layer, adapter)
    layer.kernel = kernel
    return layer
