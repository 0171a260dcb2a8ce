# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""float64 NumPy: terms of losses over pairs, from a model's float64 log-probabilities."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import oracle
import pair_oracle


def pairs_of(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the chosen and the rejected rows."""
    return np.asarray(x)[0::2], np.asarray(x)[1::2]


def row_sums(batch: Any, logps: Any, length_weight: float = 1.0) -> np.ndarray:
    """Returns the log-probability of each row, token by token, with LD-DPO's weight."""
    mask = np.asarray(batch["mask"]) > 0
    sums = np.zeros(len(mask))
    for i, row in enumerate(mask):
        shared = min(row.sum(), mask[i ^ 1].sum())
        for rank, t in enumerate(np.flatnonzero(row)):
            sums[i] += (1.0 if rank < shared else length_weight) * np.float64(logps[i, t])
    return sums


def agreement(model: Any, batch: Any) -> np.ndarray:
    """Returns WPO's weight of each row, from the sums of squares of all probabilities."""
    mask = np.asarray(batch["mask"]) > 0
    logps, _ = oracle.token_logps(model, batch)
    squares = np.zeros_like(logps)
    for token in range(model.out.kernel.shape[1]):
        every = np.full(mask.shape, token, np.int32)
        squares += np.exp(2 * oracle.token_logps(model, batch | {"targets": every})[0])
    log_weights = [
        (own[keep] - np.log(all_[keep])).mean() if keep.any() else 0.0
        for own, all_, keep in zip(logps, squares, mask, strict=True)
    ]
    return np.exp(log_weights)


def dpo(
    model: Any,
    batch: Any,
    kinds: Mapping[str, float],
    *,
    beta: float = 0.1,
    length_weight: float = 1.0,
    weighted: bool = False,
    **options: Any,
) -> dict[str, tuple[float, float]]:
    """Returns sum and count of each kind, and of the metrics."""
    logps, _ = oracle.token_logps(model, batch)
    ref = np.asarray(batch["ref_logps"], np.float64)
    ref = ref if ref.ndim == 1 else row_sums(batch, ref, length_weight)
    sums = row_sums(batch, logps, length_weight)
    lengths = pairs_of((np.asarray(batch["mask"]) > 0).sum(1))
    keep = (lengths[0] > 0) & (lengths[1] > 0)
    count = float(keep.sum())
    answers = np.stack([*pairs_of(sums), *pairs_of(ref)])[:, keep]
    weight = np.prod(pairs_of(agreement(model, batch)), axis=0)[keep] if weighted else 1.0
    terms = {}
    for kind, factor in kinds.items():
        if kind == "sft":
            total = -pairs_of(row_sums(batch, logps))[0][keep].sum()
            terms[kind] = factor * total, float(lengths[0][keep].sum())
            continue
        tokens = [n[keep] for n in lengths]
        losses = pair_oracle.pairwise(answers, kind=kind, beta=beta, tokens=tokens, **options)
        terms[kind] = factor * (weight * losses).sum(), count
    ratio = answers[:2] - answers[2:]
    metrics = {
        "reward_chosen": beta * ratio[0],
        "reward_rejected": beta * ratio[1],
        "margin": beta * (ratio[0] - ratio[1]),
        "accuracy": (ratio[0] > ratio[1]).astype(float),
        "logps_chosen": answers[0],
        "logps_rejected": answers[1],
    }
    terms |= {name: (values.sum(), count) for name, values in metrics.items()}
    return terms | {"kl": (ratio.sum(), 2 * count)}


def assert_terms(terms: Any, wanted: Any, *, rtol: float = 2e-5) -> None:
    """Asserts equal names, counts and sums."""
    assert set(terms) == set(wanted)
    for name, (total, count) in wanted.items():
        assert float(terms[name][1]) == count, name
        # Sums of some 50 log-probabilities of float32, and their differences.
        np.testing.assert_allclose(terms[name][0], total, rtol=rtol, atol=1e-4, err_msg=name)
