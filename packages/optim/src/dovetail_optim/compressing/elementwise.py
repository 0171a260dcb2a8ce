# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tests whether a transformation is elementwise, and relates its state to the parameters.

Both are read off the transformation's functions, traced with a unique size for each parameter.
State of that size belongs to that parameter. An operation that changes the size, or is known to
look along an axis, is not elementwise. Nothing is computed.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend import core

from dovetail_optim._patterns import names_of

_FIRST = 1_000_003  # the size that stands for the first parameter; no real axis is meant by it

# Operations that keep a shape and look along it, or that depend on an element's place.
_ALONG = (
    *("sort", "rev", "fft", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "iota"),
    *("random_bits", "threefry2x32", "triangular_solve", "dot_general", "gather", "scatter"),
)


def wide(dtype: Any) -> Any:
    """Returns the dtype of an update's arithmetic: float32 or wider."""
    return jnp.promote_types(dtype, jnp.float32)


def owners(tx: optax.GradientTransformation, params: Any) -> list[int | None]:
    """Returns, for each leaf of `tx.init(params)`, the parameter of its shape, or None.

    Raises TypeError for state with a part of a parameter's shape, such as factored moments.
    """
    probes, sizes = _probes(params)
    probed = jax.tree.leaves(jax.eval_shape(tx.init, probes))
    real = jax.tree.leaves(jax.eval_shape(tx.init, structs(params)))
    shapes = [jnp.shape(x) for x in jax.tree.leaves(params)]
    indices: list[int | None] = []
    for probe, leaf in zip(probed, real, strict=True):
        i = next((sizes[n] for n in probe.shape if n in sizes), None)
        expected = probe.shape if i is None else shapes[i]
        if leaf.shape != expected or (i is not None and probe.shape.count(_FIRST + i) != 1):
            name = "" if i is None else f", for {names_of(params)[i]!r} of shape {shapes[i]}"
            raise TypeError(
                "state that is stored in codes must be of each element alone, shaped as its "
                f"parameter; got state of shape {leaf.shape}{name}; use a transformation such as "
                "optax.adamw, or leave these parameters out by dovetail_optim.route"
            )
        indices.append(i)
    return indices


def check(
    tx: optax.GradientTransformationExtraArgs,
    params: Any,
    *,
    has_params: bool = True,
    extra: dict[str, Any],
) -> None:
    """Raises TypeError unless each element's update depends on that element alone.

    Args:
        tx: The transformation.
        params: Parameters.
        has_params: `update` receives the parameters.
        extra: Extra arguments of `update`.
    """
    probes, sizes = _probes(params)
    state = jax.eval_shape(tx.init, probes)

    def update(updates: Any, state: Any, params: Any) -> Any:
        return tx.update(updates, state, params if has_params else None, **extra)

    traced = jax.make_jaxpr(update)(probes, state, probes)
    for equation in _equations(traced.jaxpr):
        inputs, outputs = (_of_leaves(v, sizes) for v in (equation.invars, equation.outvars))
        name = equation.primitive.name
        if not inputs + outputs:
            continue
        if name in _ALONG or len({*inputs, *outputs}) > 1 or (inputs and not outputs):
            size = next(n for n in (inputs + outputs)[0] if n in sizes)
            raise TypeError(
                "state is updated a few blocks at a time, so each element's update must depend on "
                f"that element alone; got an operation {name!r} over all of "
                f"{names_of(params)[sizes[size]]!r}; put what needs the whole (a clip by the "
                "norm, noise) before this transformation in an optax.chain"
            )


def structs(params: Any) -> Any:
    """Returns the shapes of `params`, without shardings, in the dtypes of their updates."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), wide(x.dtype)), params)


def _probes(params: Any) -> tuple[Any, dict[int, int]]:
    """Returns the tree of `params` with a unique size for each leaf, of the same rank (1 for a
    scalar).
    """
    leaves, tree = jax.tree.flatten(structs(params))
    probes = [
        jax.ShapeDtypeStruct((_FIRST + i, *[1] * (x.ndim - 1)), x.dtype)
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, probes), {_FIRST + i: i for i in range(len(leaves))}


def _of_leaves(variables: Any, sizes: dict[int, int]) -> list[tuple[int, ...]]:
    """Returns the shapes with a parameter's size."""
    return [x.aval.shape for x in variables if any(n in sizes for n in x.aval.shape)]


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """Yields the equations of a program and its inner programs, without mere containers."""
    for equation in jaxpr.eqns:
        inner = [p for v in equation.params.values() for p in _programs(v)]
        for program in inner:
            yield from _equations(program)
        if not inner:
            yield equation


def _programs(value: Any) -> Iterator[core.Jaxpr]:
    if isinstance(value, core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _programs(item)
