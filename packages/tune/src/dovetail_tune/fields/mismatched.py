# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts with the answers of other rows, from which KTO estimates its reference point.

The reference point z0 of KTO (2402.01306, section 4.1) is the divergence of policy and reference
over outputs that are unrelated to the prompts. It is estimated from the prompts of a batch, each
with the answer of another row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dovetail_tune.fields.checks import check_new, check_pairs, prompt_lengths
from dovetail_tune.fields.iterator import FieldIterator, add_fields
from dovetail_tune.types import Batch

PREFIX = "kl_"
_NAMES = ("tokens", "targets", "mask", "segment_ids", "positions")


def with_mismatched(batches: Iterable[Batch]) -> FieldIterator:
    """Adds rows of each prompt with the answer of the row before it, for `kto`.

    The first row gets the answer of the last. With `pair_ids` a prompt gets an answer of the pair
    before, since both rows of a pair have one prompt. An answer is everything from the first target
    with mask 1 on, with its mask. Nothing is cut: a combination longer than the row is empty, with
    mask 0 throughout, and `kto` leaves it out of its mean, as it does where a row has no answer.

    Args:
        batches: Batches of single documents, right-padded, with at least 2 rows or 2 pairs:
            tokens, targets i[B, S] and mask [B, S], optionally segment_ids i[B, S] (0: padding) and
            pair_ids i[B].

    Returns:
        The batches with kl_tokens, kl_targets, kl_segment_ids, kl_positions i32[B, S] and kl_mask
        f32[B, S]. `counts` has rows, and left_out: rows that are empty.

    Raises:
        TypeError: `batches` is no iterable of batches.
        ValueError: When iterated: a field of the contract is wrong, a row has several documents,
            or a batch has one row or one pair.

    Example:

        >>> import numpy as np
        >>> from dovetail_tune import with_mismatched
        >>> tokens = np.array([[1, 2, 3], [4, 5, 6]])
        >>> batch = {"tokens": tokens, "targets": tokens + 1, "mask": np.array([[0, 1, 1]] * 2)}
        >>> next(with_mismatched([batch]))["kl_targets"].tolist()
        [[2, 6, 7], [5, 3, 4]]
    """
    return add_fields(batches, _Mismatched())


class _Mismatched:
    def __init__(self) -> None:
        self.counts = {"rows": 0, "left_out": 0}

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        check_pairs(batch)
        check_new(batch, [PREFIX + name for name in _NAMES])
        fields = _mismatch(batch)
        self.counts["rows"] += len(batch["tokens"])
        self.counts["left_out"] += int((~fields["mask"].any(axis=1)).sum())
        return {PREFIX + name: x for name, x in fields.items()}

    def close(self) -> None:
        pass


def mismatched_rows(batch: Batch) -> dict[str, Any]:
    """Returns the fields kl_* of a batch without their prefix; empty if it has none."""
    return {name.removeprefix(PREFIX): x for name, x in batch.items() if name.startswith(PREFIX)}


def _mismatch(batch: Batch) -> dict[str, np.ndarray]:
    tokens, targets = np.asarray(batch["tokens"]), np.asarray(batch["targets"])
    rows, length = tokens.shape
    cycle = 2 if "pair_ids" in batch else 1
    if rows <= cycle:
        raise ValueError(
            f"a batch must have another row or pair to take answers from, got {rows} rows"
            f"{' of one pair' if cycle == 2 else ''}; pass a larger global_batch"
        )
    prompts, ends, mask = prompt_lengths(batch), _ends(batch), np.asarray(batch["mask"])
    fields: dict[str, np.ndarray] = {
        name: np.zeros((rows, length), np.float32 if name == "mask" else np.int32)
        for name in _NAMES
    }
    for i in range(rows):
        j = (i - cycle) % rows
        start, first = prompts[i] - 1, prompts[j] - 1  # slots of the first targets of the answers
        n = start + ends[j] - first
        if start < 0 or first < 0 or n > length:
            continue
        ids = np.concatenate([tokens[i, : start + 1], targets[j, first : ends[j]]])
        fields["tokens"][i, :n], fields["targets"][i, :n] = ids[:-1], ids[1:]
        fields["mask"][i, start:n] = mask[j, first : ends[j]]
        fields["segment_ids"][i, :n], fields["positions"][i, :n] = 1, np.arange(n)
    return fields


def _ends(batch: Batch) -> np.ndarray:
    """Returns the number of slots in use of each row, i[B]."""
    if "segment_ids" not in batch:
        mask = np.asarray(batch["mask"]) > 0
        return np.where(mask.any(axis=1), mask.shape[1] - mask[:, ::-1].argmax(axis=1), 0)
    segments = np.asarray(batch["segment_ids"])
    used = (segments > 0).sum(axis=1)
    single = (segments == (np.arange(segments.shape[1])[None] < used[:, None])).all(axis=1)
    if not single.all():
        i = int(np.flatnonzero(~single)[0])
        raise ValueError(
            f"rows must have one document each, padded at the end, got segment_ids "
            f"{np.unique(segments[i]).tolist()} in row {i}; batch without packing"
        )
    return used
