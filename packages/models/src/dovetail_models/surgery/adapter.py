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

from dovetail_models.shard import named
from dovetail_models.surgery.paths import select
from dovetail_models.surgery.place import Leaf

_LINEAR = ("kernel", "bias", "in_features", "out_features", "use_bias", "dtype", "param_dtype")
_LINEAR += ("precision", "dot_general", "promote_dtype", "preferred_element_type")


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


def plain(path: str, module: nnx.Module) -> nnx.Linear:
    """Returns `module` if it can take an adapter.

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
    kernel = module.kernel.get_value()
    if not isinstance(kernel, jax.Array | jax.ShapeDtypeStruct):
        raise ValueError(
            f"An adapter goes on a float kernel, got path={path!r} with {kernel!r:.200}. Insert it "
            "before quantizing, or use the quantizer's own: dovetail_quant.qlora.insert."
        )
    return module


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
    names = base.kernel.get_metadata("out_sharding", None)
    a_meta, b_meta = {}, {}
    # Layers of foreign modules may lack names.
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
    """Returns the plain layer below `adapter`, with this kernel."""
    size = adapter.in_features, adapter.out_features
    # A layer without arrays, with Flax's own graph.
    linear = nnx.eval_shape(lambda: nnx.Linear(*size, use_bias=adapter.use_bias, rngs=nnx.Rngs(0)))
    _take_over(linear, adapter)
    linear.kernel = kernel
    return linear


def _take_over(linear: nnx.Linear, base: nnx.Linear) -> None:
    """Copies the attributes of an `nnx.Linear` from `base` to `linear`."""
    for name in _LINEAR:
        value = getattr(base, name)
        # Flax marks a missing bias; an unmarked None gives another graph.
        setattr(linear, name, nnx.data(None) if name == "bias" and value is None else value)
