# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer with several low-rank adapters, of which each row or token uses one.

Every token is multiplied by the A of all adapters, the products of the other adapters are set to 0,
and one product with all B follows. Nothing is gathered, rows with different adapters share both
products, and one program serves all choices. The cost is that of one adapter of rank `n * rank`. A
gather of each row's A and B (S-LoRA, 2311.03285) costs less for many adapters and few rows, but
copies the matrices for each token of packed rows.

Ids are an argument of the decoder and not of `nnx.Linear`, so they are bound to a copy of a block
before it runs.
"""

import functools
from typing import Any, TypeVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_models.layers.linear import take_over
from dovetail_models.placing.shard import Buffer

M = TypeVar("M", bound=nnx.Module)


class LoraStack(nnx.Linear):
    """A linear layer with n adapters: `lora_a` [n, in, rank], `lora_b` [n, rank, out].

    Adds `scales[i] * (x lora_a[i]) lora_b[i]` to the output of each row with adapter i. Adapters of
    a smaller rank, or of none at this layer, are filled up with zeros.

    Args:
        base: The layer. Its kernel, bias and settings are taken over.
        lora_a: A of all adapters, [n, in, rank].
        lora_b: B of all adapters, [n, rank, out].
        scales: Factors on the adapters' products, f32[n].
    """

    def __init__(
        self, base: nnx.Linear, *, lora_a: nnx.LoRAParam, lora_b: nnx.LoRAParam, scales: Buffer
    ):
        take_over(self, base)
        self.lora_a = lora_a
        self.lora_b = lora_b
        self.scales = scales
        self.adapter_ids: Array | None = nnx.data(None)  # set by `bind`

    def __call__(
        self, inputs: Float[Array, "*batch in"], out_sharding: Any = None
    ) -> Float[Array, "*batch out"]:
        """Returns the sum of the base's output and the chosen adapters', in the dtype of the first.

        Without bound ids it is the base's output. An id outside [-1, n) gives NaN.
        """
        out = super().__call__(inputs, out_sharding)
        if self.adapter_ids is None:
            return out
        kind = self.dtype or self.lora_a.dtype
        x, a, b = (v.astype(kind) for v in (inputs, self.lora_a[...], self.lora_b[...]))
        ids = self.adapter_ids.reshape(
            *self.adapter_ids.shape, *(1,) * (x.ndim - 1 - self.adapter_ids.ndim)
        )
        product = functools.partial(jnp.einsum, precision=self.precision)
        hidden = product("...i,nir->...nr", x, a) * self._factors(ids).astype(kind)[..., None]
        return out + product("...nr,nro->...o", hidden, b).astype(out.dtype)

    def _factors(self, ids: Int[Array, "*batch"]) -> Float[Array, "*batch n"]:
        """Returns the scale of each token's adapter at its place, and 0 at the others."""
        scales = self.scales[...]
        index = jnp.arange(scales.shape[0], dtype=ids.dtype)
        factors = jnp.where(ids[..., None] == index, scales, jnp.zeros_like(scales))
        known = (ids >= -1) & (ids < scales.shape[0])
        return jnp.where(known[..., None], factors, jnp.full_like(factors, jnp.nan))


def bind(module: M, adapter_ids: Array) -> M:
    """Returns a copy of `module` over the same parameters, with these ids in all its stacks.

    Args:
        module: A module that is called with [B, T, ...].
        adapter_ids: Ids [B] or [B, T].
    """
    bound = nnx.merge(*nnx.split(module))
    for _, submodule in nnx.iter_modules(bound):
        if isinstance(submodule, LoraStack):
            submodule.adapter_ids = nnx.data(adapter_ids)
    return bound


def stacked(module: nnx.Module) -> int:
    """Returns the number of adapters in the stacks of `module`, 0 without stacks."""
    stacks = (m for _, m in nnx.iter_modules(module) if isinstance(m, LoraStack))
    first = next(stacks, None)
    return 0 if first is None else first.scales.shape[0]
