# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random batches of unequal rows, as `dovetail_data` makes them."""

from typing import Any

import numpy as np

VOCAB = 32


def rows_of(*, rows: int, length: int = 12, seed: int = 0, vocab: int = VOCAB) -> dict[str, Any]:
    """Returns a batch of single documents, each with a prompt and an answer, and padding."""
    rng = np.random.default_rng(seed)
    tokens, targets, segment_ids, positions = np.zeros((4, rows, length), np.int32)
    mask = np.zeros((rows, length), np.float32)
    for i in range(rows):
        n = int(rng.integers(length // 2, length + 1))
        ids = rng.integers(0, vocab, n + 1)
        prompt = int(rng.integers(1, n - 1))
        tokens[i, :n], targets[i, :n] = ids[:-1], ids[1:]
        mask[i, prompt:n] = 1
        segment_ids[i, :n], positions[i, :n] = 1, np.arange(n)
    batch = {"tokens": tokens, "targets": targets, "mask": mask}
    return batch | {"segment_ids": segment_ids, "positions": positions}


def pairs_of(*, pairs: int, length: int = 12, seed: int = 0, vocab: int = VOCAB) -> dict[str, Any]:
    """Returns pairs with one prompt each, rows 2i chosen and 2i + 1 rejected, and `pair_ids`."""
    rng = np.random.default_rng(seed)
    batch = rows_of(rows=2 * pairs, length=length, seed=seed, vocab=vocab)
    for i in range(0, 2 * pairs, 2):
        prompt = int(batch["mask"][i].argmax()) + 1  # ids of the prompt; the last has a target
        ids = np.concatenate([batch["tokens"][i, :prompt], rng.integers(0, vocab, length)])
        n = int(rng.integers(prompt + 1, length + 1)) if prompt < length else length
        for name in ("tokens", "targets", "mask", "segment_ids", "positions"):
            batch[name][i + 1] = 0
        batch["tokens"][i + 1, :n], batch["targets"][i + 1, :n] = ids[:n], ids[1 : n + 1]
        batch["mask"][i + 1, prompt - 1 : n] = 1
        batch["segment_ids"][i + 1, :n], batch["positions"][i + 1, :n] = 1, np.arange(n)
    ids = rng.permutation(1000)[:pairs].astype(np.int32)
    return batch | {"pair_ids": np.repeat(ids, 2)}


def with_ref(batch: dict[str, Any], *, seed: int = 7) -> dict[str, Any]:
    """Returns the batch with random reference log-probabilities of each row."""
    rng = np.random.default_rng(seed)
    counts = batch["mask"].sum(1)
    ref = -counts * rng.uniform(2, 5, counts.shape)
    return batch | {"ref_logps": ref.astype(np.float32)}
