# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The two tables of weights: a projection with named axes, and the token embedding."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_models.shard import Constrain, named


def project(
    size: tuple[int, int],
    names: tuple[str, str],
    *,
    units: tuple[int, int] = (1, 1),
    bias: bool = False,
    std: float,
    rngs: nnx.Rngs,
) -> nnx.Linear:
    """A linear layer with kernel [in, out] drawn from normal(0, std) and bias [out] of zeros."""
    return nnx.Linear(
        *size,
        use_bias=bias,
        kernel_init=nnx.initializers.normal(std),
        kernel_metadata=named(*names, units=units),
        bias_metadata=named(names[1], units=units[1:]),
        rngs=rngs,
    )


class Embed(nnx.Module):
    """Vectors by index, a row of `embedding` [rows, embed] each: of tokens, where it is also the
    head of a tied decoder, or of positions."""

    def __init__(
        self,
        rows: int,
        embed: int,
        *,
        names: tuple[str, str] = ("vocab", "embed"),
        std: float,
        rngs: nnx.Rngs,
    ):
        init = nnx.initializers.normal(std)
        table = init(rngs.params(), (rows, embed), jnp.float32)
        self.embedding = nnx.Param(table, **named(*names))
        self.names = names

    def __call__(
        self, tokens: Int[Array, "b t"], *, constrain: Constrain
    ) -> Float[Array, "b t embed"]:
        # A lookup in a table split along embed is rematerialised whole by the partitioner: gather
        # that axis first.
        table = constrain(self.embedding[...], (self.names[0], None))
        # A token outside the table gives NaN; jnp.take would read -1 as the last row.
        rows = table.at[tokens]
        return rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)

    def attend(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch vocab"]:
        """float32 logits: the product of x with every row."""
        table = self.embedding[...]
        last = (((x.ndim - 1,), (1,)), ((), ()))
        return jax.lax.dot_general(x, table, last, preferred_element_type=jnp.float32)
