# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Router of a mixture of experts: selection, weights and balance of the experts."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from dovetail_models.config.layer import Experts, Groups
from dovetail_models.layers.inputs import restart
from dovetail_models.placing.shard import Buffer, named


class Balance(NamedTuple):
    """Statistics on how evenly one layer's experts were used. Padding is left out.

    In a packed row each document is a sequence, so the values are those of separate documents.

    Attributes:
        load: Number of tokens per expert, i32[E].
        total: Sum over sequences of DeepSeek-V3's balance loss (2412.19437, eq. 17 to 20, without
            its factor), f32[]. The loss of one sequence is 1 if all experts are used equally.
        sequences: Number of sequences, f32[]. `total / sequences` is the mean loss.
    """

    load: Int[Array, "*layers E"]
    total: Float[Array, "*layers"]
    sequences: Float[Array, "*layers"]


class ExpertLoad(nnx.Variable[jax.Array]):
    """Number of tokens per expert since the last update of a selection bias, i32[E]."""


class Router(nnx.Module):
    """Scores every expert for each token and selects `top_k` of them.

    Args:
        embed: Width of the residual stream.
        experts: Number of experts, scores and groups.
        std: Standard deviation of the fresh kernel.
        rngs: Random streams; the kernel is drawn from `params`.
    """

    def __init__(self, embed: int, experts: Experts, *, std: float, rngs: nnx.Rngs):
        kernel = nnx.initializers.normal(std)(rngs.params(), (embed, experts.count), jnp.float32)
        self.kernel = nnx.Param(kernel, **named("embed", "router"))
        zeros = jnp.zeros(experts.count)
        self.bias = nnx.Param(zeros, **named("router")) if experts.router_bias else None
        biased = experts.selection_bias
        self.selection_bias = Buffer(zeros, **named("router", keep_dtype=True)) if biased else None
        # Counts of `balancing.track_load`; nnx.data, so that a Variable can take its place.
        self.load: ExpertLoad | None = nnx.data(None)
        self.config = experts

    def __call__(
        self, x: Float[Array, "*batch embed"], expert_ids: Int[Array, "*batch K"] | None = None
    ) -> tuple[Float[Array, "*batch K"], Int[Array, "*batch K"], Float[Array, "*batch E"]]:
        """Returns the selected experts' weights (float32), their indices, and the scores of all
        experts.

        With `expert_ids` nothing is selected: the weights are those of the given experts, with
        gradients, and NaN for an id outside [0, E).
        """
        c = self.config
        # Full precision: a rounded logit can select another expert.
        kernel = self.kernel[...].astype(jnp.float32)
        logits = jnp.matmul(x.astype(jnp.float32), kernel, precision="highest")
        if self.bias is not None:
            logits += self.bias[...].astype(jnp.float32)
        scores = jax.nn.softmax(logits) if c.score == "softmax" else jax.nn.sigmoid(logits)
        if expert_ids is None:
            expert_ids = self._selected(scores)
            weights = jnp.take_along_axis(scores, expert_ids, axis=-1)
        else:
            inside = (expert_ids >= 0) & (expert_ids < c.count)
            weights = jnp.take_along_axis(scores, expert_ids, axis=-1)
            weights = jnp.where(inside, weights, jnp.nan)
        if c.normalise:
            # All sigmoids can underflow; the top k of a softmax cannot.
            weights /= jnp.sum(weights, axis=-1, keepdims=True) + 1e-20
        return weights * c.scale, expert_ids, scores

    def _selected(self, scores: Float[Array, "*batch E"]) -> Int[Array, "*batch K"]:
        """Returns the indices of the `top_k` experts with the best selection scores."""
        c, selection = self.config, scores
        if self.selection_bias is not None:
            selection = selection + self.selection_bias[...].astype(jnp.float32)
        if c.groups is not None:
            selection = jnp.where(_in_best_groups(selection, c.groups), selection, -jnp.inf)
        return jax.lax.top_k(selection, c.top_k)[1]


def _in_best_groups(selection: Float[Array, "*batch E"], groups: Groups) -> Bool[Array, "*batch E"]:
    """Returns a mask of the experts in the best groups."""
    size = selection.shape[-1] // groups.count
    grouped = selection.reshape(*selection.shape[:-1], groups.count, size)
    best = jax.lax.top_k(grouped, 2 if groups.score == "top2" else 1)[0].sum(-1)
    best_groups = jax.lax.top_k(best, groups.top_k)[1]
    kept = jax.nn.one_hot(best_groups, groups.count, dtype=bool).any(-2)
    return jnp.repeat(kept, size, axis=-1)


def balance(
    scores: Float[Array, "b t E"],
    chosen: Int[Array, "b t K"],
    segment_ids: Int[Array, "b t"] | None,
) -> Balance:
    """Returns the `Balance` of one layer.

    Args:
        scores: Scores of all experts [b, t, E].
        chosen: Indices of the selected experts [b, t, K].
        segment_ids: Each run of equal ids is a sequence; 0 is padding. None: each row is a
            sequence.
    """
    count, top_k = scores.shape[-1], chosen.shape[-1]
    taken = jax.nn.one_hot(chosen, count, dtype=jnp.int32).sum(-2)
    share = scores / scores.sum(-1, keepdims=True)
    if segment_ids is None:
        inside, start = jnp.ones(scores.shape[:2], bool), jnp.zeros(scores.shape[:2], jnp.int32)
        places = 1
    else:
        # The sum of a sequence is stored at the index of its first token.
        inside, places = segment_ids != 0, scores.shape[1]
        start = jnp.arange(places)[None] - restart(segment_ids)
    taken = jnp.where(inside[..., None], taken, 0)
    add = jax.vmap(functools.partial(jax.ops.segment_sum, num_segments=places))
    tokens = add(inside.astype(jnp.float32), start)[..., None]
    over = jnp.maximum(tokens, 1.0)
    used = add(taken, start).astype(jnp.float32) * (count / top_k) / over
    loss = used * add(jnp.where(inside[..., None], share, 0.0), start) / over
    return Balance(taken.sum((0, 1)), loss.sum(), (tokens > 0).sum().astype(jnp.float32))
