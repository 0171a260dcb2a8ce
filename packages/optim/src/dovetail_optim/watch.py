# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What an optimizer does to each parameter, measured inside the compiled step.

The numbers are part of the state: nothing waits for the device until someone reads them, and they
are saved and restored with the rest.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from dovetail_optim._patterns import Pattern, matches, name_of, no_match
from dovetail_optim.guard import norm


class Measured(NamedTuple):
    """Of the last step, in float32; by the name of the parameter, but for the norm of all.

    gradient, update, weight: root mean square of each, the weight before the step. For a stack of
    layers one number for each layer. clipped: of how many of `steps` the gradient norm was above
    the limit.
    """

    gradient_norm: Float[Array, ""]
    gradient: dict[str, Array]
    update: dict[str, Array]
    weight: dict[str, Array]
    clipped: Int[Array, ""]
    steps: Int[Array, ""]


class WatchState(NamedTuple):
    measured: Measured
    inner: Any


def watch(
    tx: optax.GradientTransformation,
    *,
    stacks: Mapping[str, int] | None = None,
    clip: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """`tx`, and what it was given and gave: see `Measured`, and `measurements` to read them.

    The gradients are those that reach `tx`: wrap the whole chain to see them before clipping.

    Args:
        stacks: {pattern: axes}: parameters whose first `axes` axes count layers or heads, each of
            which has a number of its own. The first pattern that matches decides.
        clip: the norm at which `tx` clips, to count how often it did.

    Raises ValueError, at `init`, for a pattern that matches no parameter or has as many axes as it.

        tx = watch(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), clip=1.0)
        updates, state = tx.update(grads, tx.init(params), params)
        print(measurements(state)["update_rms/layers.0.kernel"])
    """
    inner = optax.with_extra_args_support(tx)
    stacks = {Pattern(pattern).text: axes for pattern, axes in (stacks or {}).items()}

    def init(params: Any) -> WatchState:
        _check(stacks, params)
        shapes = jax.eval_shape(lambda p: _by_name(p, stacks), params)
        # One array for each: the same could not be donated twice.
        kinds = (jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes) for _ in range(3))
        counts = (jnp.zeros((), jnp.int32) for _ in range(2))
        measured = Measured(jnp.zeros((), jnp.float32), *kinds, *counts)
        return WatchState(measured, inner.init(params))

    def update(
        updates: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, WatchState]:
        if params is None:
            raise ValueError(
                "watch measures parameters, got params=None. Use update(grads, state, params)."
            )
        size, gradient = norm(updates), _by_name(updates, stacks)
        updates, after = inner.update(updates, state.inner, params, **extra)
        above = 0 if clip is None else (size > clip).astype(jnp.int32)
        measured = Measured(
            gradient_norm=size,
            gradient=gradient,
            update=_by_name(updates, stacks),
            weight=_by_name(params, stacks),
            clipped=state.measured.clipped + above,
            steps=state.measured.steps + 1,
        )
        return updates, WatchState(measured, after)

    return optax.GradientTransformationExtraArgs(init, update)


def measurements(state: Any) -> dict[str, np.ndarray]:
    """The numbers of the one `watch` within `state`, flat: "gradient_rms/PATH" and so on.

    Also "gradient_norm" and "clip_rate", the share of steps clipped. It waits for the device.

    Raises ValueError if there is no `watch`, or there are several.
    """
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Measured))
    found = [x for x in leaves if isinstance(x, Measured)]
    if len(found) != 1:
        raise ValueError(
            f"measurements needs a state with one watch, got {len(found)} in a "
            f"{type(state).__name__}. Use watch(tx), or pass the part of the state that is meant."
        )
    (one,) = jax.device_get(found)
    flat = {"gradient_norm": one.gradient_norm, "clip_rate": one.clipped / max(1, int(one.steps))}
    for kind in ("gradient", "update", "weight"):
        flat |= {f"{kind}_rms/{name}": value for name, value in getattr(one, kind).items()}
    return {name: np.asarray(value) for name, value in flat.items()}


def _by_name(tree: Any, stacks: Mapping[str, int]) -> dict[str, Array]:
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = name_of(path)
        kept = next((n for p, n in stacks.items() if matches(p, name)), 0)
        total = jnp.sum(jnp.square(leaf.astype(jnp.float32)), range(kept, leaf.ndim))
        elements = math.prod(leaf.shape[kept:])
        found[name] = jnp.sqrt(total / max(1, elements))  # without elements 0
    return found


def _check(stacks: Mapping[str, int], params: Any) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    shapes = {name_of(path): jnp.shape(leaf) for path, leaf in leaves}
    for pattern, axes in stacks.items():
        matched = [name for name in shapes if matches(pattern, name)]
        if shapes and not matched:
            raise ValueError(
                f"every pattern of stacks must match a parameter, got {pattern!r}, "
                f"{no_match(pattern, shapes)}"
            )
        for name in matched:
            if not 0 < axes < len(shapes[name]):
                raise ValueError(
                    f"stacks must leave an axis of every parameter, got {pattern!r}: {axes} for "
                    f"{name!r} of shape {shapes[name]}. Use the number of leading axes of layers."
                )
