# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""float64 NumPy: losses of the rows of a batch from its vectors, one row at a time."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def pooled(model: Any, batch: Any, *, normalize: bool = True) -> np.ndarray:
    """Returns the mean of the model's float32 features over the tokens of each row [B, D]."""
    options = {n: jnp.asarray(batch[n]) for n in ("positions", "segment_ids") if n in batch}
    x = np.asarray(model.features(jnp.asarray(batch["tokens"]), **options)[0], np.float64)
    rows = []
    for i, row in enumerate(x):
        tokens = row[np.asarray(batch["segment_ids"][i]) > 0]
        mean = tokens.mean(0) if len(tokens) else np.zeros(x.shape[2])
        norm = np.sqrt((mean**2).sum()) if normalize and len(tokens) else 1.0
        rows.append(mean / norm)
    return np.stack(rows)


def info_nce(
    x: np.ndarray,
    batch: Any,
    *,
    rows: int,
    temperature: float,
    symmetric: bool = False,
) -> dict[str, tuple[float, float]]:
    """Returns (sum, count) of the loss and of each metric."""
    count = len(x) // rows
    used = (np.asarray(batch["segment_ids"]) > 0).any(1)
    ids = np.asarray(batch.get("group_ids", np.arange(len(x))))
    pair = [set(ids[rows * i : rows * i + 2].tolist()) for i in range(count)]
    score = x @ x.T
    terms = {}

    def add(name: str, value: float) -> None:
        total, number = terms.get(name, (0.0, 0.0))
        terms[name] = (total + value, number + 1)

    for i in range(count):
        query, own = rows * i, rows * i + 1
        if not (used[query] and used[own]):
            continue
        negatives = []
        for j in range(count):
            if j != i and used[rows * j + 1] and not pair[i] & pair[j]:
                negatives.append(rows * j + 1)
            if rows == 3 and used[rows * j + 2] and ids[rows * j + 2] not in pair[i]:
                negatives.append(rows * j + 2)
        row = score[query, [own, *negatives]] / temperature
        loss = np.log(np.exp(row).sum()) - row[0]
        if symmetric:
            others = [
                rows * j
                for j in range(count)
                if j != i and used[rows * j] and not pair[i] & pair[j]
            ]
            column = score[[query, *others], own] / temperature
            loss = (loss + np.log(np.exp(column).sum()) - column[0]) / 2
        add("info_nce", loss)
        best = max((score[query, j] for j in negatives), default=-np.inf)
        add("accuracy", float(score[query, own] > best))
        add("similarity_positive", score[query, own])
        add("negatives", len(negatives))
        if negatives:
            add("similarity_negative", float(np.mean([score[query, j] for j in negatives])))
    return terms


def batch_hard(x: np.ndarray, batch: Any, *, margin: float) -> dict[str, tuple[float, float]]:
    """Returns (sum, count) of batch-hard triplets of Euclidean distances and of each metric."""
    used = (np.asarray(batch["segment_ids"]) > 0).any(1)
    classes = np.asarray(batch["group_ids"])
    far = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    values = []
    for i in range(len(x)):
        same = [far[i, j] for j in range(len(x)) if j != i and classes[j] == classes[i] and used[j]]
        other = [far[i, j] for j in range(len(x)) if classes[j] != classes[i] and used[j]]
        if used[i] and same and other:
            near, away = max(same), min(other)
            values.append((max(near - away + margin, 0), near < away, near, away))
    names = ("triplet", "accuracy", "distance_positive", "distance_negative")
    return {
        name: (float(total), float(len(values)))
        for name, total in zip(names, np.sum(values, axis=0), strict=True)
    }
