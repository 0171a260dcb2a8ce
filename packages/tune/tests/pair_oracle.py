# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""float64 NumPy: losses of pairs, from the papers, and gradients by central differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
from oracle import log_sigmoid


def _score(ratio: np.ndarray, divergence: str, alpha: float) -> np.ndarray:
    """Returns f'(t) of the divergence's f, at t = exp(ratio)."""
    if divergence == "reverse_kl":  # f = t log t, up to a constant
        return ratio
    t = np.exp(ratio)
    if divergence == "forward_kl":  # f = -log t + t
        return 1 - 1 / t
    if divergence == "js_divergence":  # f = t log t - (t + 1) log((t + 1) / 2)
        return np.log(2 * t) - np.log1p(t)
    return (t ** (alpha - 1) - 1) / (alpha - 1)


def pairwise(
    answers: Any,
    *,
    kind: str,
    beta: float,
    label_smoothing: float = 0.0,
    discopop_tau: float = 0.05,
    divergence: str = "reverse_kl",
    alpha: float = 0.5,
    tokens: Any = None,
) -> np.ndarray:
    """Returns the losses [N] of `answers` [4, N]: chosen, rejected, ref_chosen, ref_rejected."""
    pw, pl, rw, rl = np.asarray(answers, np.float64)
    eps = label_smoothing
    w, l = pw - rw, pl - rl  # noqa: E741 - the papers' winner and loser
    sw, sl = _score(w, divergence, alpha), _score(l, divergence, alpha)
    x = beta * (sw - sl)
    p = np.exp(log_sigmoid(x))
    match kind:
        case "sigmoid":
            return -(1 - eps) * log_sigmoid(x) - eps * log_sigmoid(-x)
        case "hinge":
            return np.maximum(0, 1 - x)
        case "ipo":
            return (sw / tokens[0] - sl / tokens[1] - 1 / (2 * beta)) ** 2
        case "sigmoid_norm":
            return -log_sigmoid(beta * (sw / tokens[0] - sl / tokens[1]))
        case "exo_pair":  # KL((p, 1 - p) || (1 - eps, eps))
            q = np.exp(log_sigmoid(-x))
            return p * (log_sigmoid(x) - np.log(1 - eps)) + q * (log_sigmoid(-x) - np.log(eps))
        case "nca_pair":
            own = log_sigmoid(beta * w)
            return -own - (log_sigmoid(-beta * w) + log_sigmoid(-beta * l)) / 2
        case "robust":
            both = (1 - eps) * -log_sigmoid(x) - eps * -log_sigmoid(-x)
            return both / (1 - 2 * eps)
        case "bco_pair":
            return -log_sigmoid(beta * w) - log_sigmoid(-beta * l)
        case "sppo_hard":  # log-ratios against eta (P - 1/2), with P 1 and 0, eta = 1 / beta
            return (w - (1 - 0.5) / beta) ** 2 + (l - (0 - 0.5) / beta) ** 2
        case "aot":
            return _ranked(pw - pl, rw - rl, beta, eps)
        case "aot_unpaired":
            return _ranked(w, l, beta, eps)
        case "apo_zero":
            return 1 - np.exp(log_sigmoid(beta * w)) + np.exp(log_sigmoid(beta * l))
        case "apo_down":
            return np.exp(log_sigmoid(beta * w)) + 1 - np.exp(log_sigmoid(beta * (w - l)))
        case "discopop":
            mixture = np.exp(log_sigmoid(x / discopop_tau))
            with np.errstate(over="ignore", invalid="ignore"):
                exponential = np.where(mixture > 0, mixture * np.exp(-x), 0.0)
            return (1 - mixture) * -log_sigmoid(x) + exponential
    raise AssertionError(kind)


def _ranked(own: np.ndarray, other: np.ndarray, beta: float, eps: float) -> np.ndarray:
    """Returns losses of sorted values, each at the place of the pair that had its rank."""
    losses = np.empty_like(own)
    delta = beta * (np.sort(own) - np.sort(other))
    losses[np.argsort(own)] = -(1 - eps) * log_sigmoid(delta) - eps * log_sigmoid(-delta)
    return losses


def gradient(function: Callable[[np.ndarray], np.ndarray], x: Any, *, step: float) -> np.ndarray:
    """Returns the gradient of `function(x).sum()` by central differences."""
    x = np.asarray(x, np.float64)
    slopes = np.empty_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i], down[i] = up[i] + step, down[i] - step
        slopes[i] = (function(up).sum() - function(down).sum()) / (2 * step)
    return slopes


def odds_ratio(answers: Any) -> np.ndarray:
    """Returns ORPO's losses [N] of mean log-probabilities [2, N]."""
    pw, pl = np.asarray(answers, np.float64)
    odds_w, odds_l = (np.exp(p) / -np.expm1(p) for p in (pw, pl))
    return np.log1p(odds_l / odds_w)  # -log sigmoid(log a) = log(1 + 1 / a)


def target_margin(answers: Any, *, beta: float, gamma: float, alpha: float = 0.0) -> np.ndarray:
    """Returns SimPO's and AlphaPO's losses [N] of mean log-probabilities [2, N]."""
    means = np.asarray(answers, np.float64)
    rewards = means if alpha == 0 else (1 - np.exp(means) ** -alpha) / alpha
    return -log_sigmoid(beta * (rewards[0] - rewards[1]) - gamma)
