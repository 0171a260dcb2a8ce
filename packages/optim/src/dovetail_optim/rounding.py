# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""bfloat16 parameters that move by less than half of their last bit: by rounding at random.

A bfloat16 of size 1 has steps of 2⁻⁷, so a nearest update of 10⁻³ is no update. Rounded to one of
its two neighbours, with the probability that makes the expected value exact, a parameter follows
float32 in the mean (2010.06192), at no cost in memory: see `master` for exactness.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, BFloat16, Float32, Int32, UInt32

from dovetail_optim._patterns import name_of
from dovetail_optim.mix import mix


class StochasticRoundState(NamedTuple):
    """steps: how many were taken, from which the random bits follow."""

    steps: Int32[Array, "*batch"]
    inner: Any


def stochastic_round(
    tx: optax.GradientTransformation, *, seed: int
) -> optax.GradientTransformationExtraArgs:
    """E[p'] = p + u: the update u of `tx`, rounded with each bfloat16 parameter to a neighbour.

    tx: sees bfloat16 parameters and their gradients in float32; leaves of float32 and float64 pass
    as they are. The updates of bfloat16 parameters are float32, and such that
    `optax.apply_updates` lands on the rounded value (exactly while |p'| >= 2⁻¹⁶ |p|, as for
    `split_master`). seed: from 0 to 2³² - 1; the same seed, state and gradients round alike, on any
    mesh.

    Raises ValueError for another seed, and TypeError at `init` for parameters of another dtype, and
    ValueError for `update` without parameters.

        tx = stochastic_round(optax.adamw(1e-3), seed=0)
        state = tx.init(params)  # of bfloat16
        updates, state = tx.update(grads, state, params)
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to 2**32 - 1; got seed={seed}; write seed=0")
    inner = optax.with_extra_args_support(tx)

    def init(params: Any) -> StochasticRoundState:
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
    """The update of one leaf: of bfloat16, to where `x + u` is rounded; else `u`."""
    if p.dtype != jnp.bfloat16:
        return u
    return step_to(p, round_at_random((x + u).astype(x.dtype), mix(_index(p), key)))


def round_at_random(
    x: Float32[Array, "*shape"], bits: UInt32[Array, "*shape"]
) -> BFloat16[Array, "*shape"]:
    """`x` or, by the upper 16 of uniform `bits`, the bfloat16 on its other side: `x` in the mean.

    inf and NaN stay, and a value between the largest bfloat16 and inf may become inf.
    """
    raw = jax.lax.bitcast_convert_type(x, jnp.uint32)
    rounded = ((raw + (bits >> 16)) >> 16).astype(jnp.uint16)
    found = jax.lax.bitcast_convert_type(rounded, jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), found, x.astype(jnp.bfloat16))


def step_to(p: BFloat16[Array, "*shape"], to: BFloat16[Array, "*shape"]) -> Array:
    """The float32 update by which `optax.apply_updates` takes `p` to `to`: `to - p`.

    p + (to - p) is `to` after its two roundings while |to| >= 2⁻¹⁶ |p|, and off by at most 2⁻²⁴ |p|
    below. Where nothing moves the update is -0.0, which alone keeps -0.0 as it is (and inf inf).
    """
    same = jax.lax.bitcast_convert_type(p, jnp.uint16) == jax.lax.bitcast_convert_type(
        to, jnp.uint16
    )
    return jnp.where(same, jnp.float32(-0.0), to.astype(jnp.float32) - p.astype(jnp.float32))


def _index(x: Array) -> Array:
    """The place of each element in the whole array, in the order of rows."""
    index, stride = jnp.zeros(x.shape, jnp.uint32), 1
    for axis in reversed(range(x.ndim)):
        place = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
        index, stride = index + place * jnp.uint32(stride % 2**32), stride * x.shape[axis]
    return index


def widened(params: Any) -> Any:
    """`params` with bfloat16 leaves in float32."""
    return jax.tree.map(lambda p: p.astype(jnp.promote_types(p.dtype, jnp.float32)), params)


def like(updates: Any, master: Any) -> Any:
    """`updates` in the dtypes of `master`, where they are narrower."""
    return jax.tree.map(lambda g, x: g.astype(jnp.promote_types(g.dtype, x.dtype)), updates, master)


def check_dtypes(what: str, params: Any) -> None:
    """Raises TypeError for a parameter that is neither bfloat16 nor wide enough without."""
    for path, p in jax.tree_util.tree_leaves_with_path(params):
        if p.dtype not in (jnp.bfloat16, jnp.float32, jnp.float64):
            raise TypeError(
                f"{what} moves parameters of bfloat16, and lets float32 and float64 pass; got "
                f"{name_of(path)!r} of {p.dtype}; write params.astype(jnp.bfloat16) for it, or "
                "give it another rule of dovetail_optim.route"
            )


def needs_params(what: str, params: Any) -> None:
    if params is None:
        raise ValueError(
            f"{what} needs the parameters that it rounds; got params=None; write "
            "tx.update(grads, state, params)"
        )
