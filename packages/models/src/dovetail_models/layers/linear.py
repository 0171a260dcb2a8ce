# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The two tables of weights: a projection with named axes, and the token embedding."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_models.shard import Constrain, named


@runtime_checkable
class Codes(Protocol):
    """What quantization puts in the place of a kernel: the operations that a module holds as
    attributes multiply by it."""

    def dequantize(self) -> Array:
        """The float array that it stands for."""
        ...


def whole(kernel: Any) -> Array:
    """A kernel as a float array, for who multiplies by it in another way than its module does.

    Codes are decoded into an array of their own for that: four times int8's bytes, in each call.
    """
    return kernel.dequantize() if isinstance(kernel, Codes) else kernel


def rows_dot(
    x: Float[Array, "*batch K"],
    kernel: Float[Array, "..."],
    dimension_numbers: Any,
    *rest: Any,
    **options: Any,
) -> Array:
    """`jax.lax.dot_general`, of x's last axis alone with its other axes as one.

    The gradient by the kernel contracts all of x's other axes. Where they are several, XLA:CPU
    first copies what it is contracted with, transposed, and computes it anew for that: of a gated
    feed-forward layer of 8 x 256 tokens the gradient took 1.8 times the CPU seconds. On a mesh x is
    left as it is, since axes that are split over several devices cannot always be joined.
    """
    (left, right), batched = dimension_numbers
    mesh = jax.sharding.get_abstract_mesh()
    joined = x.ndim > 2 and tuple(left) == (x.ndim - 1,) and not any(map(len, batched))
    if not joined or mesh.size > 1:
        return jax.lax.dot_general(x, kernel, dimension_numbers, *rest, **options)
    flat = x.reshape(-1, x.shape[-1])
    y = jax.lax.dot_general(flat, kernel, (((1,), right), batched), *rest, **options)
    return y.reshape(*x.shape[:-1], *y.shape[1:])


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
        dot_general=rows_dot,
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
        # Attributes, as of nnx.Linear, so that a table of codes brings its own.
        self.lookup: Callable[..., Any] = lookup
        self.dot_general: Callable[..., Any] = rows_dot

    def __call__(
        self, tokens: Int[Array, "b t"], *, constrain: Constrain
    ) -> Float[Array, "b t embed"]:
        return self.lookup(
            self.embedding[...], tokens, place=lambda t: constrain(t, (self.names[0], None))
        )

    def attend(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch vocab"]:
        """float32 logits: the product of x with every row."""
        table = self.embedding[...]
        last = (((x.ndim - 1,), (1,)), ((), ()))
        return self.dot_general(x, table, last, preferred_element_type=jnp.float32)


def lookup(
    table: Float[Array, "rows embed"],
    tokens: Int[Array, "b t"],
    *,
    place: Callable[[Array], Array],
) -> Float[Array, "b t embed"]:
    """The rows of those indices; NaN for a token outside, where jnp.take would read -1 as the last.

    place: gathers what is split along embed, for a lookup there is rematerialised whole by the
    partitioner.
    """
    rows = place(table).at[tokens]
    return rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
