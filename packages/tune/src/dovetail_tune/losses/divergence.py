# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Divergences of a student from a teacher over the vocabulary, for each token.

The teacher is p, the student is q. Forward KL(p || q) covers all of p, reverse KL(q || p) seeks its
modes, and the generalized Jensen-Shannon divergence lies between (2306.13649, section 2).

A stored teacher has its k most probable ids alone. All others are then one event, the rest. By the
data-processing inequality the divergence of these k + 1 events is at most that of all ids.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

DivergenceKind = Literal["forward", "reverse", "jsd"]

# A float32 sum of k probabilities near 1 says no more about the rest than this.
_LEAST_REST = float(jnp.finfo(jnp.float32).eps)
# Stored logarithms of the kept probabilities may add up to a mass of exp(this), by rounding.
_MASS_TOLERANCE = 1e-3


def divergence(
    logits: Float[Array, "*n V"],
    guide: Float[Array, "*n W"],
    *,
    kind: DivergenceKind = "forward",
    beta: float | None = None,
) -> Float[Array, "*n"]:
    """Returns the divergence of the student's distribution from the teacher's, in nats.

    | kind | value | 2306.13649 |
    |---|---|---|
    | forward | KL(p, q) | equation 1 |
    | reverse | KL(q, p) | equation 1, exchanged |
    | jsd | β KL(p, m) + (1 - β) KL(q, m), m = β p + (1 - β) q | equation 2 |

    `jsd` vanishes as β goes to 0 or 1, and is there β times forward and 1 - β times reverse.
    Differentiable in both arguments. A probability of exactly 0 adds 0 log 0 = 0.

    Args:
        logits: Logits of the student q.
        guide: Logits of the teacher p, over the same vocabulary.
        kind: The divergence.
        beta: The teacher's share of m, in (0, 1), for jsd alone. Default: 0.5.

    Raises:
        ValueError: `kind` is unknown, beta is out of range or not read, or the vocabularies
            differ.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_tune import losses
        >>> logits = jnp.array([[0.0, 0.0, 9.0]])
        >>> losses.divergence(logits, logits, kind="reverse").tolist()
        [0.0]
    """
    check_divergence(kind=kind, beta=beta)
    if logits.shape[-1] != guide.shape[-1]:
        raise ValueError(
            f"student and teacher must have one vocabulary, got {logits.shape[-1]} and "
            f"{guide.shape[-1]} ids; make the student with vocab_size={guide.shape[-1]} and the "
            "teacher's tokenizer"
        )
    return _between(jax.nn.log_softmax(guide), jax.nn.log_softmax(logits), kind=kind, beta=beta)


def divergence_topk(
    logits: Float[Array, "*n V"],
    ids: Int[Array, "*n k"],
    logps: Float[Array, "*n k"],
    *,
    kind: DivergenceKind = "forward",
    beta: float | None = None,
    rest: bool = True,
    temperature: float = 1.0,
) -> Float[Array, "*n"]:
    """Returns the divergence of the student from a teacher of which k ids are stored, in nats.

    With k = V it is `divergence`. A teacher with an id twice or outside the vocabulary, or whose
    probabilities add up to more than 1, has NaN.

    Args:
        logits: Logits of the student.
        ids: Distinct ids of the teacher.
        logps: Their log-probabilities over the whole vocabulary.
        kind: As in `divergence`.
        beta: As in `divergence`.
        rest: Compare the mass of all other ids as well, as one event. False compares the
            distributions given one of the k ids; a student that prefers other ids then pays
            nothing.
        temperature: Divides the logits of both; above 0. With `rest` it must be 1, since the
            stored values do not give the rest of another temperature.

    Raises:
        ValueError: `kind` is unknown, an option is out of range, or `rest` is False with one id.
    """
    check_divergence(kind=kind, beta=beta)
    check_tempered(rest=rest, temperature=temperature)
    size, k = logits.shape[-1], ids.shape[-1]
    if k == 1 and not rest:
        raise ValueError(
            "a teacher's distribution given one of its ids needs at least 2 ids, got k=1 with "
            "rest=False, which is 0 for every student; pass rest=True, or store more ids"
        )
    logits = logits / temperature
    # take_along_axis counts negative indices from the end: move them past it, where it gives NaN.
    ids = jnp.where(ids < 0, size, ids)
    picked = jnp.take_along_axis(logits, ids, axis=-1, mode="fill", fill_value=jnp.nan)
    mass = jax.nn.logsumexp(logps, axis=-1, keepdims=True)
    ordered = jnp.sort(ids, axis=-1)
    distinct = (ordered[..., 1:] != ordered[..., :-1]).all(axis=-1, keepdims=True)
    logps = jnp.where((mass < _MASS_TOLERANCE) & distinct, logps, jnp.nan)
    if not rest or k == size:
        log_p, log_q = jax.nn.log_softmax(logps / temperature), jax.nn.log_softmax(picked)
        return _between(log_p, log_q, kind=kind, beta=beta)
    others = jnp.put_along_axis(logits, ids, -jnp.inf, axis=-1, inplace=False, mode="drop")
    other = jax.nn.logsumexp(others, axis=-1, keepdims=True)
    left = jnp.maximum(-jnp.expm1(mass), _LEAST_REST)
    log_p = jnp.concatenate([logps, jnp.log(left)], axis=-1)
    log_q = jax.nn.log_softmax(jnp.concatenate([picked, other], axis=-1))
    return _between(log_p, log_q, kind=kind, beta=beta)


def check_divergence(*, kind: str, beta: float | None) -> None:
    """Raises ValueError unless `divergence` takes these options."""
    kinds = get_args(DivergenceKind)
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got kind={kind!r}; try 'jsd'")
    if beta is not None and kind != "jsd":
        raise ValueError(
            f"beta is the teacher's share in kind='jsd', got kind={kind!r}, beta={beta}; leave "
            "beta out"
        )
    if beta is not None and not 0 < beta < 1:
        raise ValueError(
            f"beta must lie in (0, 1), got beta={beta}; write kind='forward' for the limit at 0 "
            "and kind='reverse' for that at 1"
        )


def check_tempered(*, rest: bool, temperature: float) -> None:
    """Raises ValueError unless `divergence_topk` takes these options."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(
            f"temperature must be above 0 and finite, got temperature={temperature}; leave it out "
            "for 1.0"
        )
    if rest and temperature != 1:
        raise ValueError(
            "log-probabilities of k ids give no rest at another temperature, so temperature must "
            f"be 1, got temperature={temperature}; leave it out, or pass rest=False"
        )


def _between(
    log_p: Float[Array, "*n V"],
    log_q: Float[Array, "*n V"],
    *,
    kind: DivergenceKind,
    beta: float | None,
) -> Float[Array, "*n"]:
    if kind == "forward":
        return _kl(log_p, log_q)
    if kind == "reverse":
        return _kl(log_q, log_p)
    share = 0.5 if beta is None else beta
    # Where both are -inf, the gradient of logaddexp is NaN, and _kl does not read the mixture.
    neither = (log_p == -jnp.inf) & (log_q == -jnp.inf)
    a, b = (jnp.where(neither, 0.0, log) for log in (log_p, log_q))
    mixture = jnp.logaddexp(a + math.log(share), b + math.log1p(-share))
    return share * _kl(log_p, mixture) + (1 - share) * _kl(log_q, mixture)


def _kl(log_p: Float[Array, "*n V"], log_q: Float[Array, "*n V"]) -> Float[Array, "*n"]:
    # Where p is 0 both logarithms may be -inf: neither value nor gradient is to hold their
    # difference.
    p = jnp.exp(log_p)
    ratio = jnp.where(p == 0, 0.0, log_p) - jnp.where(p == 0, 0.0, log_q)
    return (p * ratio).sum(-1)
