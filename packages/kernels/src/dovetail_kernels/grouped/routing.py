# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Routing of tokens to experts.

One function covers the routers in use. They differ only in the order of four steps.

| router | score | normalise | bias, groups, scale |
|---|---|---|---|
| Mixtral, Qwen3, gpt-oss | softmax | True | |
| OLMoE, Qwen2-MoE | softmax | False | |
| DeepSeek-V2 | softmax | False | groups "max", scale |
| DeepSeek-V3, Kimi K2, GLM-4.5 | sigmoid | True | bias, groups "top2", scale |

A softmax over the logits of the chosen experts alone (gpt-oss) equals a softmax over all experts,
normalised over the chosen ones: the normaliser cancels. Both are computed as a softmax over the
chosen experts' log-scores, which cannot divide by an underflowed sum.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertGroups:
    """Restricts the choice of experts to the best groups of neighbours.

    Attributes:
        count: Number of groups, all of equal size. Divides the number of experts.
        k: Number of kept groups.
        score: A group's score: its best expert's ("max", DeepSeek-V2, 2405.04434, section 2.2.2) or
            the sum of its best two ("top2", DeepSeek-V3, 2412.19437, section 2.1.2).

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import ExpertGroups, route_tokens
        >>> logits = jnp.array([[0.0, 3.0, 2.0, 2.0]])
        >>> groups = ExpertGroups(count=2, k=1, score="max")
        >>> route_tokens(logits, k=2, groups=groups)[1].tolist()
        [[1, 0]]
    """

    count: int
    k: int
    score: Literal["max", "top2"] = "top2"


@operation
def route_tokens(
    logits: Float[Array | np.ndarray, "*tokens E"],
    *,
    k: int,
    score: Literal["softmax", "sigmoid"] = "softmax",
    bias: Float[Array | np.ndarray, " E"] | None = None,
    groups: ExpertGroups | None = None,
    normalise: bool = True,
    scale: float = 1.0,
) -> tuple[Float[Array, "*tokens k"], Int[Array, "*tokens k"]]:
    """Chooses the k experts of highest score for each token, best first, and their weights.

        weight = scale * score                                      without normalise
        weight = scale * score / Σ over the k chosen of score       with normalise

    Of equal scores the lower index is chosen. Scores of different logits count as different even if
    float32 rounds them to one number, unless a bias is added or the scores of a group's best two
    are summed.

    Args:
        logits: Router logits [..., E]. Token axes may be sharded, E may not.
        k: Experts per token, at most those of the kept groups.
        score: Function from logits to scores: "softmax" or "sigmoid".
        bias: Added to the scores [E] for the choice only (2408.15664). It changes no weight and has
            no gradient.
        groups: Restricts the choice to the best groups. None for all experts.
        normalise: Divide the weights by the sum of the chosen scores.
        scale: Factor of the weights.

    Returns:
        `(weights, experts)`, both [..., k]. Weights are in float32 or wider, as are the scores;
        experts are int32. The gradient flows through the weights.

    Raises:
        ValueError: `k`, `groups` or `bias` do not fit E, `score` is unknown, or E is sharded.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import route_tokens
        >>> weights, experts = route_tokens(jnp.array([[0.0, 2.0, 2.0]]), k=2)
        >>> weights.tolist(), experts.tolist()
        ([[0.5, 0.5]], [[1, 2]])
    """
    _check(logits, k=k, score=score, bias=bias, groups=groups)
    logits = jnp.asarray(logits)
    logits = logits.astype(np.promote_types(logits.dtype, np.float32))
    experts = jax.lax.top_k(_selection(logits, score, bias, groups), k)[1]
    chosen_logits = jnp.take_along_axis(logits, experts, axis=-1, mode="promise_in_bounds")
    if normalise:
        weights = jax.nn.softmax(
            chosen_logits if score == "softmax" else jax.nn.log_sigmoid(chosen_logits)
        )
    elif score == "softmax":
        weights = jnp.exp(chosen_logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    else:
        weights = jax.nn.sigmoid(chosen_logits)
    return weights if scale == 1.0 else weights * scale, experts


def _selection(logits: jax.Array, score: str, bias: Any, groups: ExpertGroups | None) -> jax.Array:
    """Returns the scores for the choice of experts, with −inf outside the best groups."""
    logits = jax.lax.stop_gradient(logits)
    if bias is None and (groups is None or groups.score == "max"):
        # Logits have the order of the scores, even if scores underflow or are rounded to 1. -0.0
        # is replaced: top_k would put it below 0.0.
        selection = jnp.where(logits == 0, 0, logits)
    else:
        selection = jax.nn.softmax(logits) if score == "softmax" else jax.nn.sigmoid(logits)
    if bias is not None:
        bias = jax.lax.stop_gradient(jnp.asarray(bias)).astype(selection.dtype)
        selection = selection + bias.reshape((1,) * (selection.ndim - 1) + bias.shape)
    if groups is None:
        return selection
    size = selection.shape[-1] // groups.count
    grouped = selection.reshape(*selection.shape[:-1], groups.count, size)
    worth = jax.lax.top_k(grouped, 2 if groups.score == "top2" else 1)[0].sum(-1)
    kept = jax.nn.one_hot(jax.lax.top_k(worth, groups.k)[1], groups.count, dtype=bool).any(-2)
    return jnp.where(kept[..., None], grouped, -jnp.inf).reshape(selection.shape)


def _check(logits: Any, *, k: int, score: str, bias: Any, groups: ExpertGroups | None) -> None:
    check_arrays("route_tokens", logits=logits, bias=bias)
    if not isinstance(k, int | np.integer):
        raise TypeError(f"route_tokens needs a Python int as k, got k={k!r}. Use k=2, for example.")
    if logits.ndim == 0:
        raise ValueError(
            f"route_tokens needs logits [..., E], got logits.shape={logits.shape}. Give one per "
            "expert."
        )
    count = logits.shape[-1]
    mesh_axes = jax.typeof(logits).sharding.spec[-1]
    if mesh_axes is not None:
        raise ValueError(
            "route_tokens needs the experts of logits [..., E] on every shard, got E sharded over "
            f"{mesh_axes!r}. Use jax.sharding.reshard on logits."
        )
    if score not in ("softmax", "sigmoid"):
        raise ValueError(
            f"score must be 'softmax' or 'sigmoid', got score={score!r}. Use 'softmax'."
        )
    if bias is not None and bias.shape != (count,):
        raise ValueError(
            f"route_tokens needs bias [E] for logits [..., E], got bias.shape={bias.shape}, "
            f"E={count}. Give one number per expert."
        )
    eligible = count
    if groups is not None:
        eligible = _eligible(groups, count)
    if not 1 <= k <= eligible:
        raise ValueError(
            f"route_tokens needs 1 <= k <= the experts to choose from, {eligible} of E={count}, "
            f"got k={k}, groups={groups}. Use a smaller k or more groups."
        )


def _eligible(groups: ExpertGroups, count: int) -> int:
    """Returns the number of experts in the kept groups, of `count` in all."""
    if groups.count < 1 or count % groups.count or not 1 <= groups.k <= groups.count:
        raise ValueError(
            "route_tokens needs groups of equal size and 1 <= groups.k <= groups.count, got "
            f"{groups}, E={count}. Use a groups.count that divides E."
        )
    size, least = count // groups.count, {"max": 1, "top2": 2}.get(groups.score)
    if least is None or size < least:
        raise ValueError(
            "route_tokens needs groups.score 'max', or 'top2' and at least two experts a group, "
            f"got {groups}, E={count}. Use score='max'."
        )
    return groups.k * size
