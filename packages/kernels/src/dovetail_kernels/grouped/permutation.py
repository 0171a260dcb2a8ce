# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Permutation of token rows into the order of their experts, and its inverse.

Both directions are gathers, and so are both gradients. JAX would differentiate a gather as a
scatter-add, which on GPUs sums in an order that changes from run to run. With the sorted order and
its inverse the gradient is a gather in the other direction and a sum over the k choices, always in
the same order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays, known
from dovetail_kernels.derivatives import reverse_mode
from dovetail_kernels.mesh import per_shard


class Permutation(NamedTuple):
    """The positions of the choices after `permute`. A choice is a token with one of its k experts.

    Attributes:
        choices: Row r of the permuted rows belongs to token `choices[r] // k` and its expert number
            `choices[r] % k`. i32[R].
        places: The inverse, i32[M, k].
        total: Number of rows with an expert, i32[]. They come first; later rows have none.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import permute
        >>> rows, sizes, plan = permute(jnp.ones((2, 3)), jnp.array([[2, 0], [0, 1]]), count=3)
        >>> plan.choices.tolist(), plan.places.tolist(), int(plan.total)
        ([1, 2, 3, 0], [[3, 0], [1, 2]], 4)
    """

    choices: Int[Array, " R"]
    places: Int[Array, "M k"]
    total: Int[Array, ""]


@operation
def permute(
    x: Float[Array | np.ndarray, "M D"], experts: Integer[Array | np.ndarray, "M k"], *, count: int
) -> tuple[Float[Array, "R D"], Int[Array, " E"], Permutation]:
    """Repeats each token's row once per expert, sorted by expert.

    Args:
        x: Tokens [M, D]. On an Explicit mesh D may be sharded, but not M: all tokens are sorted
            together.
        experts: Experts of each token [M, k], in 0 to E - 1, as returned by `route_tokens`. Under a
            trace values are unknown. There the row of an expert out of range is placed behind all
            others, `sizes` does not count it, and `unpermute` makes its token NaN.
        count: E, the number of experts.

    Returns:
        `(rows, sizes, plan)`: rows [M k, D], the number of rows per expert i32[E], and the
        permutation. The first `sizes[0]` rows are those of expert 0, and so on; rows of one expert
        are in the order of tokens.

    Raises:
        ValueError: Shapes do not fit, an expert is out of range, or an axis is sharded that cannot
            be.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import permute
        >>> x = jnp.array([[1.0], [2.0], [3.0]])
        >>> rows, sizes, plan = permute(x, jnp.array([[2, 0], [0, 1], [2, 1]]), count=3)
        >>> rows[:, 0].tolist(), sizes.tolist()
        ([1.0, 2.0, 2.0, 3.0, 1.0, 3.0], [2, 2, 2])
    """
    _check_permute(x, experts, count=count)

    def run(x: jax.Array, experts: jax.Array) -> tuple[jax.Array, ...]:
        sizes, plan = _sorted(experts, count)
        return _spread(_reverse_x(x), plan), sizes, *plan

    rows, sizes, *plan = per_shard(
        "permute",
        run,
        (jnp.asarray(x), jnp.asarray(experts, jnp.int32)),
        ("md", "mk"),
        out=("rd", "e", "r", "mk", ""),
        may="d",
        instead=_INSTEAD,
    )
    return rows, sizes, Permutation(*plan)


@operation
def unpermute(
    rows: Float[Array | np.ndarray, "R D"],
    plan: Permutation,
    weights: Float[Array | np.ndarray, "M k"],
) -> Float[Array, "M D"]:
    """Computes `out[m] = Σ_j weights[m, j] * rows[plan.places[m, j]]`, in the order of tokens.

    Args:
        rows: Permuted rows [M k, D]. On an Explicit mesh D may be sharded.
        plan: The permutation from `permute`.
        weights: Weight of each choice [M, k].

    Returns:
        Tokens [M, D] in the dtype of rows. Sums over the k choices are in float32 or wider, from j
        = 0 on. Differentiable in rows and weights, in reverse mode, also twice.

    Raises:
        ValueError: Shapes do not fit, or an axis is sharded that cannot be.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import permute, unpermute
        >>> x = jnp.array([[1.0], [2.0]])
        >>> rows, sizes, plan = permute(x, jnp.array([[1, 0], [0, 1]]), count=2)
        >>> unpermute(rows, plan, jnp.array([[0.5, 0.5], [1.0, 2.0]])).tolist()
        [[1.0], [6.0]]
    """
    check_arrays("unpermute", rows=rows, weights=weights)
    tokens, k = plan.places.shape
    if weights.shape != (tokens, k) or rows.ndim != 2 or rows.shape[0] != tokens * k:
        raise ValueError(
            "unpermute needs rows [M k, D] and weights [M, k] for a plan of M tokens and k experts "
            f"each, got rows.shape={rows.shape}, weights.shape={weights.shape}, M={tokens}, k={k}. "
            "Use the plan that permute gave with these rows, and the weights of route_tokens."
        )
    return per_shard(
        "unpermute",
        lambda rows, weights, *plan: _merge(*_reverse_rows((rows, weights)), Permutation(*plan)),
        (jnp.asarray(rows), jnp.asarray(weights), *plan),
        ("rd", "mk", "r", "mk", ""),
        out="md",
        may="d",
        instead=_INSTEAD,
    )


_INSTEAD = (
    "Gather that axis with jax.sharding.reshard, or permute inside jax.shard_map, each shard its "
    "own tokens."
)


# In the rules too: a derivative of a gradient in forward mode meets the same functions.
_reverse_x = functools.partial(reverse_mode, "permute")
_reverse_rows = functools.partial(reverse_mode, "unpermute")


def _sorted(experts: jax.Array, count: int) -> tuple[jax.Array, Permutation]:
    flat = experts.reshape(-1)
    flat = jnp.where((flat >= 0) & (flat < count), flat, count)
    choices = jnp.argsort(flat, stable=True).astype(jnp.int32)
    places = jnp.argsort(choices).astype(jnp.int32).reshape(experts.shape)
    own = flat[:, None] == jnp.arange(count, dtype=jnp.int32)[None, :]
    sizes = jnp.sum(own, axis=0, dtype=jnp.int32)
    return sizes, Permutation(choices, places, jnp.sum(sizes, dtype=jnp.int32))


def _sum(parts: Iterable[jax.Array]) -> jax.Array:
    """Adds in the given order."""
    return functools.reduce(operator.add, parts)


@jax.custom_vjp
def _spread(x: jax.Array, plan: Permutation) -> jax.Array:
    return x[plan.choices // plan.places.shape[1]]


def _spread_forward(x: jax.Array, plan: Permutation) -> tuple[jax.Array, Permutation]:
    return _spread(_reverse_x(x), plan), plan


def _spread_backward(plan: Permutation, g: jax.Array) -> tuple[jax.Array, None]:
    wide = np.promote_types(g.dtype, np.float32)
    return _sum(g[place].astype(wide) for place in plan.places.T).astype(g.dtype), None


_spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def _merge(rows: jax.Array, weights: jax.Array, plan: Permutation) -> jax.Array:
    wide = np.promote_types(rows.dtype, np.float32)
    # One gather per choice, which XLA fuses with the sum: no [M, k, D] is made.
    terms = (
        jnp.where(place < plan.total, weight.astype(wide), jnp.nan)[:, None]
        * rows[place].astype(wide)
        for place, weight in zip(plan.places.T, weights.T, strict=True)
    )
    return _sum(terms).astype(rows.dtype)


def _merge_forward(rows: jax.Array, weights: jax.Array, plan: Permutation) -> Any:
    rows, weights = _reverse_rows((rows, weights))
    return _merge(rows, weights, plan), (rows, weights, plan)


def _merge_backward(saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, plan = saved
    wide = np.promote_types(rows.dtype, np.float32)
    weight = weights.reshape(-1)[plan.choices].astype(wide)[:, None]
    d_rows = weight * g[plan.choices // weights.shape[1]].astype(wide)
    d_weights = [(rows[place].astype(wide) * g.astype(wide)).sum(-1) for place in plan.places.T]
    return d_rows.astype(rows.dtype), jnp.stack(d_weights, 1).astype(weights.dtype), None


_merge.defvjp(_merge_forward, _merge_backward)


def _check_permute(x: Any, experts: Any, *, count: int) -> None:
    check_arrays("permute", x=x, experts=experts)
    if x.ndim != 2 or experts.ndim != 2 or x.shape[0] != experts.shape[0] or not experts.shape[1]:
        raise ValueError(
            "permute needs x [M, D] and experts [M, k], k at least 1, got x.shape="
            f"{x.shape}, experts.shape={experts.shape}. Reshape token axes to one."
        )
    values = known(experts)
    if values is None or not values.size:
        return
    least, most = int(values.min()), int(values.max())
    if least < 0 or most >= count:
        raise ValueError(
            f"permute needs experts from 0 to count - 1 = {count - 1}, got {least} to {most}, "
            f"count={count}. Use the count of experts that route_tokens chose among."
        )
