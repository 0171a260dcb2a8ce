# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sampling by its definition: one row of logits at a time, with a sort."""

import jax
import jax.numpy as jnp
from jax import Array


def warp_row(z: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array) -> Array:
    """Computes `(z - maximum) / temperature` of the kept tokens, -inf of the others, f32[V].

    A row without distribution is NaN.

    Args:
        z: Logits [V].
        temperature: At least 0; 0 keeps the first of the largest.
        top_k: Number of tokens; 0 keeps all.
        top_p: Least probability of the kept tokens; 1 keeps all.
        min_p: Least probability relative to the likeliest token.
    """
    z = z.astype(jnp.float32)
    top = jnp.max(jnp.where(jnp.isnan(z), jnp.inf, z))
    scaled = (z - top) / jnp.where(temperature == 0, 1, temperature)
    ordered = jnp.sort(z, descending=True)
    kth = jnp.where(top_k == 0, -jnp.inf, ordered[jnp.minimum(top_k, z.size) - 1])
    p = jnp.where(ordered >= kth, jnp.sort(jax.nn.softmax(scaled), descending=True), 0)
    needed = jnp.cumsum(p) - p < top_p * jnp.sum(p)  # the more likely ones do not reach top_p
    least = jnp.where(top_p == 1, kth, jnp.min(jnp.where(needed, ordered, jnp.inf)))
    keep = (z >= least) & (z > -jnp.inf) & (jnp.exp(scaled) >= min_p)
    keep = jnp.where(temperature == 0, jnp.arange(z.size) == jnp.argmax(z), keep)
    return jnp.where(jnp.isfinite(top), jnp.where(keep, scaled, -jnp.inf), jnp.nan)


@jax.jit
def sample(
    logits: Array,
    *,
    keys: Array,
    temperature: float | Array = 1.0,
    top_k: int | Array = 0,
    top_p: float | Array = 1.0,
    min_p: float | Array = 0.0,
) -> Array:
    """Draws a token of each row, i32[B], with Gumbel noise; -1 for a row without distribution.

    Args:
        logits: Logits [B, V].
        keys: One key per row [B].
        temperature: A number or [B], as all options.
        top_k: As in `warp_row`.
        top_p: As in `warp_row`.
        min_p: As in `warp_row`.
    """
    options = (jnp.asarray(x, jnp.float32) for x in (temperature, top_p, min_p))
    t, p, m = (jnp.broadcast_to(x, logits.shape[:1]) for x in options)
    k = jnp.broadcast_to(jnp.asarray(top_k, jnp.int32), logits.shape[:1])
    warped = jax.vmap(warp_row)(logits, t, k, p, m)
    drawn = jax.vmap(jax.random.categorical)(keys, warped)
    return jnp.where(jnp.isnan(warped[:, 0]), -1, drawn).astype(jnp.int32)
