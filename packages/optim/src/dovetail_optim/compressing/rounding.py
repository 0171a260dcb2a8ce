# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding of bfloat16 parameters, for updates below half of their last bit.

A bfloat16 of size 1 has steps of 2⁻⁷, so a nearest update of 10⁻³ is no update. Rounded at random
to one of its two neighbours, with an exact expected value, a parameter follows float32 in the mean
(2010.06192) at no cost in memory. `master` is exact instead.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, BFloat16, Float32, Int32, UInt32

from dovetail_optim._patterns import name_of
from dovetail_optim.compressing.mix import mix
from dovetail_optim.route import with_extra_args


class StochasticRoundState(NamedTuple):
    """State of `stochastic_round`.

    Attributes:
        steps: Number of steps taken; determines the random bits.
        inner: State of the wrapped transformation.
    """

    steps: Int32[Array, "*batch"]
    inner: Any


def stochastic_round(
    tx: optax.GradientTransformation, *, seed: int
) -> optax.GradientTransformationExtraArgs:
    """Rounds each bfloat16 parameter at random after the update u of `tx`, so E[p'] = p + u.

    `tx` sees bfloat16 parameters and their gradients in float32. Leaves of float32 and float64 pass
    unchanged. Updates of bfloat16 parameters are float32, and `optax.apply_updates` lands on the
    rounded value (exactly while |p'| >= 2⁻¹⁶ |p|, as for `split_master`).

    Args:
        tx: Any transformation.
        seed: From 0 to 2³² - 1. Equal seed, state and gradients give equal results, on any mesh.

    Raises:
        ValueError: The seed is out of range, or `update` is called without parameters.
        TypeError: At `init`: a parameter has another dtype.

    Example:

        >>> import jax.numpy as jnp, optax
        >>> params = {"w": jnp.ones(3, jnp.bfloat16)}
        >>> tx = stochastic_round(optax.adamw(1e-3), seed=0)
        >>> updates, state = tx.update(params, tx.init(params), params)
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to 2**32 - 1; got seed={seed}; write seed=0")
    inner = with_extra_args(tx)

    def init(params: Any) -> StochasticRoundState:
        with jax.transfer_guard("allow"):
            check_dtypes("stochastic_round", params)
            return StochasticRoundState(jnp.zeros((), jnp.int32), inner.init(widened(params)))

    def update(
        updates: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, StochasticRoundState]:
        needs_params("stochastic_round", params)
        master = widened(params)
        u, after = inner.update(like(updates, master), state.inner, master, **extra)
        leaves, tree = jax.tree.flatten(params)
        moved = [
            _rounded(p, x, u, mix(jnp.uint32(seed) + jnp.uint32(i), state.steps.astype(jnp.uint32)))
            for i, (p, x, u) in enumerate(
                zip(leaves, tree.flatten_up_to(master), tree.flatten_up_to(u), strict=True)
            )
        ]
        return jax.tree.unflatten(tree, moved), StochasticRoundState(state.steps + 1, after)

    return optax.GradientTransformationExtraArgs(init, update)


def _rounded(p: Array, x: Array, u: Array, key: Array) -> Array:
    """Returns the update of one leaf; of bfloat16, to the rounded `x + u`."""
    if p.dtype != jnp.bfloat16:
        return u
    return step_to(p, round_at_random((x + u).astype(x.dtype), mix(_index(p), key)))


def round_at_random(
    x: Float32[Array, "*shape"], bits: UInt32[Array, "*shape"]
) -> BFloat16[Array, "*shape"]:
    """Rounds `x` to one of the two nearest bfloat16 by the upper 16 `bits`; unbiased for uniform
    bits.

    inf and NaN stay. A value between the largest bfloat16 and inf may become inf.
    """
    raw = jax.lax.bitcast_convert_type(x, jnp.uint32)
    rounded = ((raw + (bits >> 16)) >> 16).astype(jnp.uint16)
    nearby = jax.lax.bitcast_convert_type(rounded, jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), nearby, x.astype(jnp.bfloat16))


def step_to(p: BFloat16[Array, "*shape"], to: BFloat16[Array, "*shape"]) -> Array:
    """Returns the float32 update `to - p`, by which `optax.apply_updates` takes `p` to `to`.

    p + (to - p) is `to` after its two roundings while |to| >= 2⁻¹⁶ |p|, and off by at most 2⁻²⁴ |p|
    below. For equal values the update is -0.0, the only one that keeps -0.0 (and inf).
    """
    same = jax.lax.bitcast_convert_type(p, jnp.uint16) == jax.lax.bitcast_convert_type(
        to, jnp.uint16
    )
    return jnp.where(same, jnp.float32(-0.0), to.astype(jnp.float32) - p.astype(jnp.float32))


def _index(x: Array) -> Array:
    """Returns the row-major index of each element in the whole array."""
    index, stride = jnp.zeros(x.shape, jnp.uint32), 1
    for axis in reversed(range(x.ndim)):
        place = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
        index, stride = index + place * jnp.uint32(stride % 2**32), stride * x.shape[axis]
    return index


def widened(params: Any) -> Any:
    """Returns `params` with bfloat16 leaves in float32."""
    return jax.tree.map(lambda p: p.astype(jnp.promote_types(p.dtype, jnp.float32)), params)


def like(updates: Any, master: Any) -> Any:
    """Returns `updates` in the dtypes of `master`, if these are wider."""
    return jax.tree.map(lambda g, x: g.astype(jnp.promote_types(g.dtype, x.dtype)), updates, master)


def check_dtypes(what: str, params: Any) -> None:
    """Raises TypeError unless all parameters are bfloat16, float32 or float64."""
    for path, p in jax.tree_util.tree_leaves_with_path(params):
        if p.dtype not in (jnp.bfloat16, jnp.float32, jnp.float64):
            raise TypeError(
                f"{what} moves parameters of bfloat16, and lets float32 and float64 pass; got "
                f"{name_of(path)!r} of {p.dtype}; write params.astype(jnp.bfloat16) for it, or "
                "give it another rule of dovetail_optim.route"
            )


def needs_params(what: str, params: Any) -> None:
    """Raises ValueError for `params` None."""
    if params is None:
        raise ValueError(
            f"{what} needs the parameters that it rounds; got params=None; write "
            "tx.update(grads, state, params)"
        )
