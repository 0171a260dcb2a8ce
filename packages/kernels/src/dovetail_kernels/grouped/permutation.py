# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens in the order of their experts, and back.

Both ways are gathers, and so are both gradients: the derivative that JAX would take of a gather is
a scatter-add, which on GPUs sums in an order that changes from run to run. A sorted order and its
inverse make it a gather of the other direction and a sum over the k choices, always in that order.
"""

import functools
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Integer

from dovetail_kernels.mesh import per_shard


class Permutation(NamedTuple):
    """Where `permute` put each choice, a pair of a token and one of its k experts.

    Row r of the permuted rows belongs to token `choices[r] // k` and its expert `choices[r] % k`;
    `places` is the inverse. The first `total` rows belong to experts, any others to none.
    """

    choices: Int[Array, " R"]
    places: Int[Array, "M k"]
    total: Int[Array, ""]


def permute(
    x: Float[Array | np.ndarray, "M D"], experts: Integer[Array | np.ndarray, "M k"], *, count: int
) -> tuple[Float[Array, "R D"], Int[Array, " E"], Permutation]:
    """`(rows, sizes, plan)`: each token's row once per expert of it, expert by expert.

    R = M k rows, of which the first `sizes[0]` are those of expert 0, and so on; within an expert
    in the order of tokens. `count` is E; experts are in 0 to E - 1, k per token, as `route_tokens`
    returns them.
    Under a trace, where values are unknown, the row of an expert out of that range is put behind
    all others, `sizes` leaves it out, and `unpermute` makes its token NaN.

    Under an Explicit mesh D may be sharded; tokens may not, since they are sorted together.

    Raises:
        ValueError: shapes that do not fit; an expert out of range; a mesh as above.

    Example:

        import jax, jax.numpy as jnp
        from dovetail_kernels import permute, route_tokens, unpermute
        x = jax.random.normal(jax.random.key(0), (5, 4))
        weights, experts = route_tokens(jax.random.normal(jax.random.key(1), (5, 8)), k=2)
        rows, sizes, plan = permute(x, experts, count=8)
        print(jnp.allclose(unpermute(rows, plan, weights), x, atol=1e-6))
    """
    _check_permute(x, experts, count=count)

    def run(x: jax.Array, experts: jax.Array) -> tuple[jax.Array, ...]:
        sizes, plan = _sorted(experts, count)
        return _spread(x, plan), sizes, *plan

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


def unpermute(
    rows: Float[Array | np.ndarray, "R D"],
    plan: Permutation,
    weights: Float[Array | np.ndarray, "M k"],
) -> Float[Array, "M D"]:
    """`out[m] = Σ over j of weights[m, j] * rows[plan.places[m, j]]`, back in the order of tokens.

    Sums are in float32 or wider, from j = 0 on; the dtype of rows out. Gradients are of rows and
    weights. D may be sharded, as in `permute`.

    Raises:
        ValueError: shapes that do not fit; a mesh as in `permute`.
    """
    tokens, k = plan.places.shape
    if weights.shape != (tokens, k) or rows.ndim != 2 or rows.shape[0] != tokens * k:
        raise ValueError(
            "unpermute needs rows [M k, D] and weights [M, k] for a plan of M tokens and k experts "
            f"each, got rows.shape={rows.shape}, weights.shape={weights.shape}, M={tokens}, k={k}. "
            "Use the plan that permute gave with these rows, and the weights of route_tokens."
        )
    return per_shard(
        "unpermute",
        lambda rows, weights, *plan: _merge(rows, weights, Permutation(*plan)),
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


def _sorted(experts: jax.Array, count: int) -> tuple[jax.Array, Permutation]:
    flat = experts.reshape(-1)
    flat = jnp.where((flat >= 0) & (flat < count), flat, count)
    choices = jnp.argsort(flat, stable=True).astype(jnp.int32)
    places = jnp.argsort(choices).astype(jnp.int32).reshape(experts.shape)
    own = flat[:, None] == jnp.arange(count, dtype=jnp.int32)[None, :]
    sizes = jnp.sum(own, axis=0, dtype=jnp.int32)
    return sizes, Permutation(choices, places, jnp.sum(sizes, dtype=jnp.int32))


def _sum(parts: Iterable[jax.Array]) -> jax.Array:
    """In the order given."""
    return functools.reduce(operator.add, parts)


@jax.custom_vjp
def _spread(x: jax.Array, plan: Permutation) -> jax.Array:
    return x[plan.choices // plan.places.shape[1]]


def _spread_forward(x: jax.Array, plan: Permutation) -> tuple[jax.Array, Permutation]:
    return _spread(x, plan), plan


def _spread_backward(plan: Permutation, g: jax.Array) -> tuple[jax.Array, None]:
    wide = np.promote_types(g.dtype, np.float32)
    return _sum(g[place].astype(wide) for place in plan.places.T).astype(g.dtype), None


_spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def _merge(rows: jax.Array, weights: jax.Array, plan: Permutation) -> jax.Array:
    wide = np.promote_types(rows.dtype, np.float32)
    # One gather per choice, which XLA fuses with the sum: no [M, k, D] is made.
    parts = (
        jnp.where(place < plan.total, weight.astype(wide), jnp.nan)[:, None]
        * rows[place].astype(wide)
        for place, weight in zip(plan.places.T, weights.T, strict=True)
    )
    return _sum(parts).astype(rows.dtype)


def _merge_forward(rows: jax.Array, weights: jax.Array, plan: Permutation) -> Any:
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
    if x.ndim != 2 or experts.ndim != 2 or x.shape[0] != experts.shape[0] or not experts.shape[1]:
        raise ValueError(
            "permute needs x [M, D] and experts [M, k], k at least 1, got x.shape="
            f"{x.shape}, experts.shape={experts.shape}. Reshape token axes to one."
        )
    if isinstance(experts, Tracer) or not experts.size:
        return
    least, most = int(experts.min()), int(experts.max())
    if least < 0 or most >= count:
        raise ValueError(
            f"permute needs experts from 0 to count - 1 = {count - 1}, got {least} to {most}, "
            f"count={count}. Use the count of experts that route_tokens chose among."
        )
