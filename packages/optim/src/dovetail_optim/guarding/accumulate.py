# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Exact gradient accumulation over microbatches: the sum of gradients over the sum of counts.

`optax.MultiSteps` averages the means of microbatches, so a token in a short microbatch weighs more
than one in a long, and a NaN stays in its accumulator. Here the sums start anew for every step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from dovetail_optim import _elsewhere
from dovetail_optim.guarding.guard import chosen
from dovetail_optim.route import with_extra_args


class AccumulateState(NamedTuple):
    """State of `accumulate`.

    Attributes:
        sums: Sums of gradients, float32 or wider.
        total: Sum of counts.
        microbatches: Number of microbatches in the sums.
        inner: State of the wrapped transformation.
    """

    sums: Any
    total: Float[Array, ""]
    microbatches: Int[Array, ""]
    inner: Any


@_elsewhere.accumulate
def accumulate(
    tx: optax.GradientTransformation, *, every: int
) -> optax.GradientTransformationExtraArgs:
    """Passes g = (g_1 + ... + g_every) / (n_1 + ... + n_every) to `tx`, once in `every` updates.

    Gradients must be of a sum, such as a loss summed over tokens. `update` takes `count=`, the
    number of summed terms, as a number or scalar. In between, updates are -0.0, which changes no
    bit of a parameter, and the state of `tx` stays. If all counts add up to 0, the step is left
    out. Other extra arguments of `update` are those of the last microbatch. Hence `grad` and
    `value_fn`, for a line search such as that of `optax.lbfgs`, are refused.

    `accumulate(guard(tx), every=4)` judges whole gradients: a NaN costs its own four microbatches.

    Args:
        tx: Any transformation.
        every: Number of microbatches per step.

    Raises:
        ValueError: `every` is below 1, or `update` is called without `count` or, if `every` is
            above 1, with `grad` or `value_fn`.

    Example:

        >>> import jax.numpy as jnp, optax
        >>> tx = accumulate(optax.adamw(1e-3), every=4)
        >>> params = {"w": jnp.ones(3)}
        >>> updates, state = tx.update(params, tx.init(params), params, count=128)
    """
    if every < 1:
        raise ValueError(f"every must be at least 1 microbatch, got every={every}. Use every=1.")
    inner = with_extra_args(tx)

    def init(params: Any) -> AccumulateState:
        with jax.transfer_guard("allow"):
            sums = jax.tree.map(_zeros, params)
            zero = jnp.zeros((), jnp.float32)
            return AccumulateState(sums, zero, jnp.zeros((), jnp.int32), inner.init(params))

    def update(
        updates: Any, state: Any, params: Any = None, *, count: Any = None, **extra: Any
    ) -> tuple[Any, AccumulateState]:
        if count is None:
            raise ValueError(
                "accumulate needs count, the number of summed terms; got count=None. "
                "Use update(grads, state, params, count=mask.sum())."
            )
        searched = [name for name in ("grad", "value_fn") if name in extra]
        if searched and every > 1:
            raise ValueError(
                "a line search needs a value and gradient of the whole batch, and accumulate has "
                f"extra arguments of the last microbatch alone; got {', '.join(searched)} with "
                f"{every=}; use accumulate(tx, every=1) and gradients of whole batches"
            )
        sums = jax.tree.map(lambda s, g: s + g.astype(s.dtype), state.sums, updates)
        total = state.total + jnp.asarray(count, jnp.float32)
        microbatches = state.microbatches + 1

        def step() -> tuple[Any, Any]:
            mean = jax.tree.map(
                lambda s, g: (s / total.astype(s.dtype)).astype(g.dtype), sums, updates
            )
            return inner.update(mean, state.inner, params, **extra)

        full = microbatches == every
        updates, after = chosen(full & (total != 0), step, state.inner)
        sums = jax.tree.map(lambda s: jnp.where(full, jnp.zeros_like(s), s), sums)
        total = jnp.where(full, 0.0, total)
        microbatches = jnp.where(full, 0, microbatches)
        return updates, AccumulateState(sums, total, microbatches, after)

    return optax.GradientTransformationExtraArgs(init, update)


def _zeros(param: Array) -> Array:
    return jnp.zeros(param.shape, jnp.promote_types(param.dtype, jnp.float32))
