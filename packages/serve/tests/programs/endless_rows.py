# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the refusals of loops that never end, and ends while they run."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_serve import Tensor, export


def on_the_example(params, *, x):
    """Waits for a value that never comes."""
    return {"y": jax.lax.while_loop(lambda y: jnp.all(y < 2), jnp.sin, x)}


def beside_rows_of_nan(params, *, x):
    """Newton's method for square roots, until all rows have converged."""
    x = jnp.abs(x) + 1

    def step(state):
        root, done = state
        better = 0.5 * (root + x / root)
        # Within a few epsilons of float32. Rows that have converged stay as they are.
        return jnp.where(done, root, better), done | (jnp.abs(better - root) < 1e-6 * root)

    start = (x, jnp.zeros(x.shape, bool))
    root, _ = jax.lax.while_loop(lambda state: ~jnp.all(state[1]), step, start)
    return {"y": root}


def in_batches_of_8(params, *, x):
    """Ends for fewer rows."""
    return {"y": jax.lax.while_loop(lambda y: (y.shape[0] == 8) & jnp.all(y < 2), jnp.sin, x)}


FUNCTIONS = {"example": on_the_example, "rows": beside_rows_of_nan, "size": in_batches_of_8}
refusals = {}
for name, fn in FUNCTIONS.items():
    try:
        export(
            fn,
            {},
            inputs={"x": Tensor(("batch", 2), "float32")},
            example={"x": np.random.default_rng(0).random((3, 2), "float32")},
            batch_sizes=(4, 8),
            platforms=("cpu",),
            limit_s=2.0,
        )
    except ValueError as error:
        refusals[name] = str(error)
print(json.dumps(refusals))
