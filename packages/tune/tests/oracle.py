# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""float64 NumPy: log-probabilities of a decoder's targets from its float32 features and head."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def log_sigmoid(x: Any) -> np.ndarray:
    """Returns log sigmoid(x) in float64, without overflow."""
    return -np.logaddexp(0.0, -np.asarray(x, np.float64))


def token_logps(
    model: Any, batch: Any, *, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns log-probabilities and entropies [B, S] of masked targets; 0 elsewhere."""
    names = [name for name in ("positions", "segment_ids") if name in batch]
    options = {name: jnp.asarray(batch[name]) for name in names}
    x = np.asarray(model.features(jnp.asarray(batch["tokens"]), **options)[0], np.float64)
    weight, cap = model.head_weight()
    logits = x @ np.asarray(weight, np.float64)
    logits = logits if cap is None else cap * np.tanh(logits / cap)
    logits = logits / temperature
    top = logits.max(-1, keepdims=True)
    log_p = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    targets, mask = np.asarray(batch["targets"]), np.asarray(batch["mask"]) > 0
    picked = np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    entropy = -(np.exp(log_p) * log_p).sum(-1)
    return np.where(mask, picked, 0.0), np.where(mask, entropy, 0.0)


def log_softmax(x: Any) -> np.ndarray:
    """Returns log softmax over the last axis in float64."""
    x = np.asarray(x, np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def divergence(logits: Any, guide: Any, *, kind: str, beta: float | None = None) -> np.ndarray:
    """Returns the divergence of a student from a teacher, from their logits."""
    return _between(log_softmax(guide), log_softmax(logits), kind, 0.5 if beta is None else beta)


def divergence_topk(
    logits: Any,
    guide: Any,
    ids: Any,
    *,
    kind: str,
    beta: float | None = None,
    rest: bool = True,
    temperature: float = 1.0,
) -> np.ndarray:
    """Returns the divergence over k ids of the teacher, and one event of all others."""
    log_p, log_q = log_softmax(guide / temperature), log_softmax(logits / temperature)
    kept = np.zeros(log_p.shape, bool)
    np.put_along_axis(kept, np.asarray(ids), True, axis=-1)
    both = []
    for log in (log_p, log_q):
        own = np.exp(np.take_along_axis(log, np.asarray(ids), axis=-1))
        other = np.where(kept, 0.0, np.exp(log)).sum(-1, keepdims=True)
        events = np.concatenate([own, other], -1) if rest else own / own.sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            both.append(np.log(events))
    return _between(*both, kind, 0.5 if beta is None else beta)


def _between(log_p: np.ndarray, log_q: np.ndarray, kind: str, beta: float) -> np.ndarray:
    p, q = np.exp(log_p), np.exp(log_q)
    with np.errstate(divide="ignore"):
        log_m = np.log(beta * p + (1 - beta) * q)
    if kind == "forward":
        return _kl(p, log_p, log_q)
    if kind == "reverse":
        return _kl(q, log_q, log_p)
    return beta * _kl(p, log_p, log_m) + (1 - beta) * _kl(q, log_q, log_m)


def _kl(p: np.ndarray, log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)
