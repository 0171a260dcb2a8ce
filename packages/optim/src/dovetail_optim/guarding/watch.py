# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of each parameter's gradient and update, measured inside the compiled step.

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

from dovetail_optim._patterns import Pattern, matches, name_of, select
from dovetail_optim.guarding.guard import norm
from dovetail_optim.route import with_extra_args


class Measured(NamedTuple):
    """Statistics of the last step, in float32, by name of the parameter.

    For a stack of layers there is one number per layer.

    Attributes:
        gradient_norm: Norm of all gradients.
        gradient: Root mean square of each gradient.
        update: Root mean square of each update.
        weight: Root mean square of each parameter before the step.
        clipped: Number of steps with a gradient norm above the limit.
        steps: Number of steps.
    """

    gradient_norm: Float[Array, ""]
    gradient: dict[str, Array]
    update: dict[str, Array]
    weight: dict[str, Array]
    clipped: Int[Array, ""]
    steps: Int[Array, ""]


class WatchState(NamedTuple):
    """State of `watch`: the measurements, and the state of the wrapped transformation."""

    measured: Measured
    inner: Any


def watch(
    tx: optax.GradientTransformation,
    *,
    stacks: Mapping[str, int] | None = None,
    clip: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Measures the gradients and updates of `tx`; read them by `measurements`.

    The gradients are those that reach `tx`: wrap the whole chain to see them before clipping.

    Args:
        tx: Any transformation.
        stacks: {pattern: axes} for parameters whose first `axes` axes count layers or heads. Each
            layer or head has its own numbers. The first match decides.
        clip: Norm at which `tx` clips, to count how often it did.

    Raises:
        ValueError: At `init`: a pattern matches no parameter, or has as many axes as it.

    Example:

        >>> import jax.numpy as jnp, optax
        >>> tx = watch(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), clip=1.0)
        >>> params = {"w": jnp.ones(3)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> float(measurements(state)["gradient_rms/w"])
        1.0
    """
    inner = with_extra_args(tx)
    stacks = {Pattern(pattern).text: axes for pattern, axes in (stacks or {}).items()}

    def init(params: Any) -> WatchState:
        with jax.transfer_guard("allow"):
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
    """Returns the numbers of the only `watch` within `state`. Waits for the device.

    The names are "gradient_norm"; "clip_rate", the share of steps above `clip`, 0 without it; and
    for each parameter "gradient_rms/NAME", "update_rms/NAME" and "weight_rms/NAME".

    Raises:
        ValueError: The state has no `watch`, or several.
    """
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Measured))
    watches = [x for x in leaves if isinstance(x, Measured)]
    if len(watches) != 1:
        raise ValueError(
            f"measurements needs a state with one watch, got {len(watches)} in a "
            f"{type(state).__name__}. Use watch(tx), or pass the part of the state that is meant."
        )
    (measured,) = jax.device_get(watches)
    flat = {
        "gradient_norm": measured.gradient_norm,
        "clip_rate": measured.clipped / max(1, int(measured.steps)),
    }
    for kind in ("gradient", "update", "weight"):
        flat |= {f"{kind}_rms/{name}": value for name, value in getattr(measured, kind).items()}
    return {name: np.asarray(value) for name, value in flat.items()}


def _by_name(tree: Any, stacks: Mapping[str, int]) -> dict[str, Array]:
    values = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = name_of(path)
        kept = next((n for p, n in stacks.items() if matches(p, name)), 0)
        total = jnp.sum(jnp.square(leaf.astype(jnp.float32)), range(kept, leaf.ndim))
        elements = math.prod(leaf.shape[kept:])
        values[name] = jnp.sqrt(total / max(1, elements))  # without elements 0
    return values


def _check(stacks: Mapping[str, int], params: Any) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    shapes = {name_of(path): jnp.shape(leaf) for path, leaf in leaves}
    for pattern, axes in stacks.items():
        rule = "every pattern of stacks must match a parameter"
        for name in select(pattern, shapes, rule=rule) if shapes else ():
            if not 0 < axes < len(shapes[name]):
                raise ValueError(
                    f"stacks must leave an axis of every parameter, got {pattern!r}: {axes} for "
                    f"{name!r} of shape {shapes[name]}. Use the number of leading axes of layers."
                )
