# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of a pair from the log-probabilities of its answers under a policy and a reference.

With h = (chosen - ref_chosen) - (rejected - ref_rejected), the margin of the implicit rewards over
beta, DPO's loss is -log sigmoid(beta h) (2305.18290, equation 7). `kinds` has the others.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dovetail_tune.losses.divergence_scores import Divergence, divergence_score
from dovetail_tune.losses.kinds import KINDS, Answers, Kind, Options
from dovetail_tune.losses.options import check_options
from dovetail_tune.rows import Pair


def pairwise(
    chosen: Float[Array | np.ndarray, " N"],
    rejected: Float[Array | np.ndarray, " N"],
    ref_chosen: Float[Array | np.ndarray, " N"],
    ref_rejected: Float[Array | np.ndarray, " N"],
    *,
    beta: float = 0.1,
    kind: Kind = "sigmoid",
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
    label_smoothing: float = 0.0,
    discopop_tau: float = 0.05,
    tokens: tuple[Float[Array | np.ndarray, " N"], Float[Array | np.ndarray, " N"]] | None = None,
    where: Bool[Array | np.ndarray, " N"] | None = None,
) -> Float[Array, " N"]:
    """Returns the preference loss of each pair.

    Values and gradients are finite for log-ratios up to 1e18, whose squares float32 holds; for
    "ipo" with another divergence up to 40. TRL 1.16 has the same values, except for "sigmoid" with
    label smoothing, which it ignores there.

    Args:
        chosen: log p(chosen answer), a sum over its tokens, in nats.
        rejected: The same of the rejected answers.
        ref_chosen: log p(chosen answer) under the reference. 0 for losses without a reference.
        ref_rejected: The same of the rejected answers.
        beta: Strength of the penalty on distance from the reference; above 0. In "ipo" and
            "sppo_hard" the target margin is 1 / (2 beta).
        kind: The loss. `kinds` cites the paper of each.
        divergence: Penalty of the distance (2309.16240), for the kinds of the difference of
            scores: sigmoid, sigmoid_norm, hinge, ipo, exo_pair, robust, discopop.
        alpha: Coefficient of "alpha_divergence".
        label_smoothing: Rate of flipped labels in [0, 0.5), for sigmoid (conservative DPO), robust,
            aot and aot_unpaired, and the eps of exo_pair, above 0 there.
        discopop_tau: Temperature of the mixture in "discopop", in (0, 1].
        tokens: Numbers of tokens of chosen and rejected answers, for "ipo" and "sigmoid_norm".
            Pass ones for the IPO of sums.
        where: True for the pairs that count, for the kinds that compare all pairs, "aot" and
            "aot_unpaired". Default: all.

    Returns:
        The loss of each pair. In "aot" and "aot_unpaired", that of the pair's rank.

    Raises:
        ValueError: An option is out of range, or the kind does not have it.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_tune.losses import pairwise
        >>> pairwise(*jnp.array([[-5.0], [-9.0], [-6.0], [-8.0]]), beta=0.5, kind="hinge")
        Array([0.], dtype=float32)
    """
    check_options(
        [kind],
        beta=beta,
        divergence=divergence,
        alpha=alpha,
        label_smoothing=label_smoothing,
        discopop_tau=discopop_tau,
    )
    form = KINDS[kind]
    if form.tokens and tokens is None:
        raise ValueError(
            f"kind={kind!r} divides by the number of tokens, got tokens=None; pass "
            f"tokens=(of the chosen answers, of the rejected ones), or ones for sums"
        )
    policy = Pair(jnp.asarray(chosen), jnp.asarray(rejected))
    ref = Pair(jnp.asarray(ref_chosen), jnp.asarray(ref_rejected))
    ratios = (own - base for own, base in zip(policy, ref, strict=True))
    score = Pair(*(divergence_score(r, divergence=divergence, alpha=alpha) for r in ratios))
    every = jnp.ones(policy.chosen.shape, bool) if where is None else jnp.asarray(where)
    counts = None if tokens is None else Pair(*(jnp.maximum(jnp.asarray(n), 1) for n in tokens))
    answers = Answers(policy, ref, score, counts, every)
    return form.of(answers, Options(beta, label_smoothing, discopop_tau))
