# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`nnx.Embed` with a quantized table: the one layer whose class is replaced, as it takes rows with
`jnp.take` in its own code. Other embeddings take part by attributes, `lookup` and `dot_general`."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_quant.kernel import Kernel, QuantizedParam


class QuantizedEmbed(nnx.Module):
    """The rows of a table of codes, and products with all of them."""

    def __init__(self, before: nnx.Embed, embedding: QuantizedParam):
        self.embedding = embedding
        self.num_embeddings, self.features = before.num_embeddings, before.features
        self.dtype, self.param_dtype = before.dtype, before.param_dtype

    def __call__(
        self, inputs: Int[Array, "*batch"], out_sharding: Any = None
    ) -> Float[Array, "*batch features"]:
        """The rows of those indices; NaN for an index that is none, a negative one among them."""
        kernel: Any = self.embedding[...]
        found = kernel.rows(inputs).astype(self.dtype)
        return found if out_sharding is None else jax.sharding.reshard(found, out_sharding)

    def attend(
        self, query: Float[Array, "*batch features"], out_sharding: Any = None
    ) -> Float[Array, "*batch rows"]:
        """The product of a query with every row."""
        kernel: Any = self.embedding[...]
        product = kernel.product(query.astype(self.dtype))
        return product if out_sharding is None else jax.sharding.reshard(product, out_sharding)


def lookup(table: Kernel, index: Int[Array, "*batch"], **options: Any) -> Array:
    """The rows of a quantized table, for modules that hold how they look up as an attribute.

    options: of how a float table would be placed before, which codes need not.
    """
    return table.rows(index)
