# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Linear projections with named axes, the embedding table, and checks of its tokens."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from dovetail_models.placing.shard import Constrain, named

_LINEAR = ("kernel", "bias", "in_features", "out_features", "use_bias", "dtype", "param_dtype")
_LINEAR += ("precision", "dot_general", "promote_dtype", "preferred_element_type")


@runtime_checkable
class Codes(Protocol):
    """A quantized kernel. The operations that modules hold as attributes multiply by it."""

    def dequantize(self) -> Array:
        """Returns the float array."""
        ...


def whole(kernel: Any) -> Array:
    """Returns a kernel as a float array, for products other than its module's own.

    Codes are decoded into a new array in each call, four times int8's bytes.
    """
    return kernel.dequantize() if isinstance(kernel, Codes) else kernel


def rows_dot(
    x: Float[Array, "*batch K"],
    kernel: Float[Array, "..."],
    dimension_numbers: Any,
    *rest: Any,
    **options: Any,
) -> Array:
    """Computes `jax.lax.dot_general` over x's last axis alone, with its other axes joined into one.

    The kernel's gradient contracts all other axes of x. If there are several, XLA:CPU first copies
    the other operand, transposed, and recomputes it for the copy: the gradient of a gated
    feed-forward layer of 8 x 256 tokens took 1.8 times the CPU seconds. On a mesh x keeps its
    shape, since axes split over several devices cannot always be joined.

    Args:
        x: Left operand [*batch, K].
        kernel: Right operand.
        dimension_numbers: As in `jax.lax.dot_general`.
        *rest: Further positional arguments of `jax.lax.dot_general`.
        **options: Keyword arguments of `jax.lax.dot_general`.
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
    """Returns a linear layer: kernel [in, out] from normal(0, std), bias [out] of zeros.

    Args:
        size: (in, out).
        names: Logical names of the kernel's dimensions.
        units: Elements of each dimension that must stay on one device, such as a head.
        bias: Add a bias.
        std: Standard deviation of the kernel.
        rngs: Random streams; the kernel is drawn from `params`.
    """
    return nnx.Linear(
        *size,
        use_bias=bias,
        kernel_init=nnx.initializers.normal(std),
        kernel_metadata=named(*names, units=units),
        bias_metadata=named(names[1], units=units[1:]),
        dot_general=rows_dot,
        rngs=rngs,
    )


def take_over(linear: nnx.Linear, base: nnx.Linear) -> None:
    """Copies the attributes of an `nnx.Linear` from `base` to `linear`, of a subclass."""
    for name in _LINEAR:
        value = getattr(base, name)
        # Flax marks a missing bias; an unmarked None gives another graph.
        setattr(linear, name, nnx.data(None) if name == "bias" and value is None else value)


class Embed(nnx.Module):
    """Table of vectors: one row of `embedding` [rows, embed] per token or position.

    Also the head of a tied decoder.

    Args:
        rows: Number of vectors.
        embed: Width of a vector.
        names: Logical names of the table's dimensions.
        std: Standard deviation of the fresh table.
        rngs: Random streams; the table is drawn from `params`.
    """

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
        # Attributes, as in nnx.Linear: a quantized table replaces them.
        self.lookup: Callable[..., Any] = lookup
        self.dot_general: Callable[..., Any] = rows_dot

    def __call__(
        self, tokens: Int[Array, "b t"], *, constrain: Constrain
    ) -> Float[Array, "b t embed"]:
        return self.lookup(
            self.embedding[...], tokens, place=lambda t: constrain(t, (self.names[0], None))
        )

    def attend(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch vocab"]:
        """Returns float32 logits: the product of x with every row."""
        table = self.embedding[...]
        last = (((x.ndim - 1,), (1,)), ((), ()))
        return self.dot_general(x, table, last, preferred_element_type=jnp.float32)


def lookup(
    table: Float[Array, "rows embed"],
    tokens: Int[Array, "b t"],
    *,
    place: Callable[[Array], Array],
) -> Float[Array, "b t embed"]:
    """Returns the rows at `tokens`.

    An index outside the table gives NaN; `jnp.take` would read -1 as the last row.

    Args:
        table: Vectors [rows, embed].
        tokens: Indices of rows [b, t].
        place: Gathers a table that is split along embed. The partitioner rematerialises the result
            of a lookup in a split table.
    """
    rows = place(table).at[tokens]
    return rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def check_form(tokens: Array | np.ndarray) -> None:
    """Raises TypeError unless tokens are integers, ValueError unless they are [B, T]."""
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(
            f"tokens must be ids, integers, got dtype={tokens.dtype}. Use .astype(jnp.int32), or "
            "embeds= of a decoder for vectors."
        )
    if tokens.ndim != 2:
        raise ValueError(
            f"tokens must be [B, T], got shape={tokens.shape}. Use tokens[None] for one row."
        )


def check_tokens(tokens: Array, *, vocab_size: int) -> None:
    """Raises ValueError if a token is outside the vocabulary."""
    low, high = span(tokens)
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"Every token must be in [0, vocab_size), got tokens from {low} to {high} with "
            f"vocab_size={vocab_size}. Use the tokenizer that the model was trained with, or a "
            "model with a larger vocabulary."
        )


def span(index: Array | np.ndarray) -> tuple[int, int]:
    """Returns minimum and maximum, or zeros if there are none or `index` is traced."""
    if isinstance(index, Tracer) or index.size == 0:
        return 0, 0
    # NumPy: a JAX reduction of a constant inside jit would be traced.
    concrete = np.asarray(index)
    return int(concrete.min()), int(concrete.max())
