# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Contract checks for any gradient transformation.

The mathematics of an optimizer is for its own tests. These checks are about loops: a step can be
compiled once, scanned, vmapped, donated, saved and restored, on trees with holes.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS = 4


def check_transformation(
    tx: optax.GradientTransformation, params: Any, *, tolerance: float = 1e-5, **extra: Any
) -> None:
    """Checks that `tx` keeps the contract of a gradient transformation on `params`.

    It must keep types, compile once, and give the same under scan, vmap, donation and a saved copy
    of its state; zero gradients must do no harm.

    Args:
        tx: The transformation.
        params: A pytree of arrays for `tx`. Gradients are random.
        tolerance: Relative to the largest parameter, between the compiled, scanned or vmapped step
            and the interpreted one.
        extra: Further arguments of `update`, such as `value`.

    Raises:
        AssertionError: A check fails; the message has the reason.

    Example:

        >>> check_transformation(optax.sgd(0.1, momentum=0.9), {"w": jnp.ones((3, 4))})
    """
    tx = optax.with_extra_args_support(tx)
    loop = _Loop(tx, jax.tree.map(jnp.asarray, params), tolerance, extra)
    for check in (
        _keeps_types,
        _compiles_once,
        _scans,
        _vmaps,
        _is_donated,
        _survives_a_copy,
        _moves_trees_with_holes,
        _stands_still_at_zero,
    ):
        check(loop)


class _Loop:
    """A transformation, its start, and the gradients of a few steps."""

    def __init__(
        self,
        tx: optax.GradientTransformationExtraArgs,
        params: Any,
        tolerance: float,
        extra: dict[str, Any],
    ):
        self.tx, self.params, self.tolerance, self.extra = tx, params, tolerance, extra
        rng = np.random.default_rng(0)
        self.grads = [
            jax.tree.map(
                lambda p: jnp.asarray(rng.standard_normal(p.shape, np.float32), p.dtype), params
            )
            for _ in range(STEPS)
        ]

    def step(self, params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = self.tx.update(grads, state, params, **self.extra)
        return optax.apply_updates(params, updates), state

    @functools.cached_property
    def compiled(self) -> Callable[..., tuple[Any, Any]]:
        return jax.jit(self.step)

    @functools.cached_property
    def expected(self) -> Any:
        return self.run(self.compiled)

    def run(self, step: Callable[..., tuple[Any, Any]]) -> Any:
        params, state = self.params, self.tx.init(self.params)
        for grads in self.grads:
            params, state = step(params, state, grads)
        return params

    def same(self, what: str, got: Any, expected: Any) -> None:
        for path, right in jax.tree_util.tree_leaves_with_path(expected):
            left = dict(jax.tree_util.tree_leaves_with_path(got))[path]
            right, left = (np.asarray(x, np.float64) for x in (right, left))
            eps = float(jnp.finfo(jax.tree.leaves(self.params)[0].dtype).eps)
            bound = max(self.tolerance, eps) * max(1.0, np.abs(right).max(initial=0.0))
            error = np.abs(left - right).max(initial=0.0)
            assert error <= bound, f"{what}: {jax.tree_util.keystr(path)} is off by {error}"


def _types(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _keeps_types(loop: _Loop) -> None:
    state = loop.tx.init(loop.params)
    update = jax.jit(loop.tx.update)
    updates, after = update(loop.grads[0], state, loop.params, **loop.extra)
    assert _types(after) == _types(state), "a step changes shapes or dtypes of the state"
    shapes = [jax.tree.map(jnp.shape, x) for x in (updates, loop.params)]
    assert shapes[0] == shapes[1], "updates have other shapes than the parameters"
    moved = optax.apply_updates(loop.params, updates)
    assert _types(moved) == _types(loop.params), "a step changes the dtypes of the parameters"


def _compiles_once(loop: _Loop) -> None:
    traced = []

    @jax.jit
    def step(*args: Any) -> tuple[Any, Any]:
        traced.append(None)
        return loop.step(*args)

    loop.same("compiled", loop.run(step), loop.run(loop.step))
    assert len(traced) == 1, f"{STEPS} steps were traced {len(traced)} times"


def _scans(loop: _Loop) -> None:
    stacked = jax.tree.map(lambda *g: jnp.stack(g), *loop.grads)
    start = (loop.params, loop.tx.init(loop.params))
    (params, _), _ = jax.lax.scan(lambda c, g: (loop.step(*c, g), None), start, stacked)
    loop.same("scanned", params, loop.expected)


def _vmaps(loop: _Loop) -> None:
    def pair(tree: Any, other: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.stack([a, b]), tree, other)

    twice = pair(loop.params, loop.grads[0])
    states = jax.vmap(loop.tx.init)(twice)
    step = jax.jit(jax.vmap(loop.step))
    moved, _ = step(twice, states, pair(loop.grads[1], loop.grads[2]))
    first, _ = loop.compiled(loop.params, loop.tx.init(loop.params), loop.grads[1])
    loop.same("vmapped", jax.tree.map(lambda x: x[0], moved), first)


def _is_donated(loop: _Loop) -> None:
    step = jax.jit(loop.step, donate_argnums=(0, 1))
    # The state as it is made: if two of its arrays are one, the step fails.
    params, state = jax.tree.map(jnp.copy, loop.params), loop.tx.init(loop.params)
    for grads in loop.grads:
        params, state = step(params, state, grads)
    loop.same("donated", params, loop.expected)


def _survives_a_copy(loop: _Loop) -> None:
    """Saves and restores like a checkpoint: arrays to the host, and into the structure of a fresh
    state.
    """
    step, params, state = loop.compiled, loop.params, loop.tx.init(loop.params)
    for grads in loop.grads[:-1]:
        params, state = step(params, state, grads)
    kept = [np.array(x) for x in jax.tree.leaves(state)]
    fresh = jax.tree.structure(loop.tx.init(loop.params))
    restored = jax.tree.unflatten(fresh, [jnp.asarray(x) for x in kept])
    straight, back = (step(params, s, loop.grads[-1]) for s in (state, restored))
    for a, b in zip(jax.tree.leaves(straight), jax.tree.leaves(back), strict=True):
        assert np.array(a).tobytes() == np.array(b).tobytes(), "a restored state steps otherwise"


def _moves_trees_with_holes(loop: _Loop) -> None:
    empty: dict[str, Any] = {}
    jax.jit(loop.tx.update)(empty, loop.tx.init(empty), empty, **loop.extra)
    holed = {"none": None, "masked": optax.MaskedNode(), "all": loop.params}
    grads = {"none": None, "masked": optax.MaskedNode(), "all": loop.grads[0]}
    moved, _ = loop.compiled(holed, loop.tx.init(holed), grads)
    plain, _ = loop.compiled(loop.params, loop.tx.init(loop.params), loop.grads[0])
    loop.same("beside None and MaskedNode", moved["all"], plain)


def _stands_still_at_zero(loop: _Loop) -> None:
    zeros = jax.tree.map(jnp.zeros_like, loop.params)
    params, state = loop.params, loop.tx.init(loop.params)
    for _ in range(2):
        params, state = loop.compiled(params, state, zeros)
    before = jax.tree.leaves((loop.params, loop.tx.init(loop.params)))
    for x, start in zip(jax.tree.leaves((params, state)), before, strict=True):
        if jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            # NaN may stand for what is not there yet.
            fine = jnp.isfinite(x) | ~jnp.isfinite(start)
            assert bool(fine.all()), "gradients of zero give a value that is not finite"
