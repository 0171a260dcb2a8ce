# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which experts a token goes to, with which weights, and how evenly."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from dovetail_models.config import Experts, Groups
from dovetail_models.inputs import restart
from dovetail_models.shard import Buffer, named


class Balance(NamedTuple):
    """How evenly one layer's experts were used.

    `load` i32[E] counts the choices of each expert. `total` f32[] adds, over sequences, the balance
    loss of DeepSeek-V3 (2412.19437, eq. 17 to 20, without its factor), 1 where all experts are used
    alike; `sequences` f32[] is their number, which divides it. In a packed row each document is a
    sequence, so both are those of the documents apart. Padding is left out of all three.
    """

    load: Int[Array, "*layers E"]
    total: Float[Array, "*layers"]
    sequences: Float[Array, "*layers"]


class Router(nnx.Module):
    """Scores every expert for a token and chooses `top_k` of them."""

    def __init__(self, embed: int, experts: Experts, *, std: float, rngs: nnx.Rngs):
        kernel = nnx.initializers.normal(std)(rngs.params(), (embed, experts.count), jnp.float32)
        self.kernel = nnx.Param(kernel, **named("embed", "router"))
        zeros = jnp.zeros(experts.count)
        self.bias = nnx.Param(zeros, **named("router")) if experts.router_bias else None
        biased = experts.selection_bias
        self.selection_bias = Buffer(zeros, **named("router")) if biased else None
        self.config = experts

    def __call__(
        self, x: Float[Array, "*batch embed"]
    ) -> tuple[Float[Array, "*batch K"], Int[Array, "*batch K"], Float[Array, "*batch E"]]:
        """(float32 weights of the chosen experts, their indices, every expert's score)."""
        c = self.config
        # In full precision: a rounded logit sends the token to another expert.
        kernel = self.kernel[...].astype(jnp.float32)
        logits = jnp.matmul(x.astype(jnp.float32), kernel, precision="highest")
        if self.bias is not None:
            logits += self.bias[...].astype(jnp.float32)
        scores = jax.nn.softmax(logits) if c.score == "softmax" else jax.nn.sigmoid(logits)
        selection = scores
        if self.selection_bias is not None:
            selection = selection + self.selection_bias[...].astype(jnp.float32)
        if c.groups is not None:
            selection = jnp.where(_in_best_groups(selection, c.groups), selection, -jnp.inf)
        chosen = jax.lax.top_k(selection, c.top_k)[1]
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if c.normalise:
            # Sigmoids can all underflow; a sum of softmax's best cannot.
            weights /= jnp.sum(weights, axis=-1, keepdims=True) + 1e-20
        return weights * c.scale, chosen, scores


def _in_best_groups(selection: Float[Array, "*batch E"], groups: Groups) -> Bool[Array, "*batch E"]:
    """Whether an expert is in one of the best groups."""
    size = selection.shape[-1] // groups.count
    grouped = selection.reshape(*selection.shape[:-1], groups.count, size)
    best = jax.lax.top_k(grouped, 2 if groups.score == "top2" else 1)[0].sum(-1)
    chosen = jax.lax.top_k(best, groups.top_k)[1]
    kept = jax.nn.one_hot(chosen, groups.count, dtype=bool).any(-2)
    return jnp.repeat(kept, size, axis=-1)


def balance(
    scores: Float[Array, "b t E"],
    chosen: Int[Array, "b t K"],
    segment_ids: Int[Array, "b t"] | None,
) -> Balance:
    """The `Balance` of one layer. Each run of equal segment ids is a sequence; 0 is padding."""
    count, top_k = scores.shape[-1], chosen.shape[-1]
    taken = jax.nn.one_hot(chosen, count, dtype=jnp.int32).sum(-2)
    share = scores / scores.sum(-1, keepdims=True)
    if segment_ids is None:
        inside, start = jnp.ones(scores.shape[:2], bool), jnp.zeros(scores.shape[:2], jnp.int32)
        places = 1
    else:
        # A sequence is summed at the place of its first token.
        inside, places = segment_ids != 0, scores.shape[1]
        start = jnp.arange(places)[None] - restart(segment_ids)
    taken = jnp.where(inside[..., None], taken, 0)
    add = jax.vmap(functools.partial(jax.ops.segment_sum, num_segments=places))
    tokens = add(inside.astype(jnp.float32), start)[..., None]
    over = jnp.maximum(tokens, 1.0)
    used = add(taken, start).astype(jnp.float32) * (count / top_k) / over
    loss = used * add(jnp.where(inside[..., None], share, 0.0), start) / over
    return Balance(taken.sum((0, 1)), loss.sum(), (tokens > 0).sum().astype(jnp.float32))
