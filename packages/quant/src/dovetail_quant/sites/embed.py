# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`nnx.Embed` with a quantized table: the one layer whose class is replaced.

It takes rows with `jnp.take` in its own code. Other embeddings are adapted through their attributes
`lookup` and `dot_general`.
"""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_quant.sites.kernel import Kernel, QuantizedParam


class QuantizedEmbed(nnx.Module):
    """An embedding table of codes: lookups of rows, and products with all of them."""

    def __init__(self, before: nnx.Embed, embedding: QuantizedParam):
        self.embedding = embedding
        self.num_embeddings, self.features = before.num_embeddings, before.features
        self.dtype, self.param_dtype = before.dtype, before.param_dtype

    def __call__(
        self, inputs: Int[Array, "*batch"], out_sharding: Any = None
    ) -> Float[Array, "*batch features"]:
        """Returns the rows of the indices; NaN for an index outside the table, including negative
        ones.
        """
        kernel: Any = self.embedding[...]
        rows = kernel.rows(inputs).astype(self.dtype)
        return rows if out_sharding is None else jax.sharding.reshard(rows, out_sharding)

    def attend(
        self, query: Float[Array, "*batch features"], out_sharding: Any = None
    ) -> Float[Array, "*batch rows"]:
        """Returns the product of a query with every row."""
        kernel: Any = self.embedding[...]
        product = kernel.product(query.astype(self.dtype))
        return product if out_sharding is None else jax.sharding.reshard(product, out_sharding)


def lookup(table: Kernel, index: Int[Array, "*batch"], **options: Any) -> Array:
    """Returns the rows of a quantized table, for modules with their lookup as an attribute.

    Args:
        table: The codes.
        index: Row numbers.
        options: Placement options of a float lookup; unused.
    """
    return table.rows(index)
