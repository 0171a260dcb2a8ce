# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the refusal of a loop that never ends beside a row of NaN, and ends while it runs."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_serve import Platform
from dovetail_serve.exporting.rows import check_rows
from dovetail_serve.exporting.runner import Runner


def square_root(weights, arrays):
    """Newton's method until all rows have converged."""
    x = jnp.abs(arrays["x"]) + 1

    def step(state):
        root, done = state
        better = 0.5 * (root + x / root)
        # Within a few epsilons of float32. Rows that have converged stay as they are.
        return jnp.where(done, root, better), done | (jnp.abs(better - root) < 1e-6 * root)

    start = (x, jnp.zeros(x.shape, bool))
    root, _ = jax.lax.while_loop(lambda state: ~jnp.all(state[1]), step, start)
    return {"y": root}


example = {"x": np.random.default_rng(0).random((3, 2), "float32")}
try:
    check_rows(
        Runner(square_root, {}, [Platform(name="cpu")], limit_s=1.0), example, batch_sizes=[3]
    )
except ValueError as error:
    print(error)
