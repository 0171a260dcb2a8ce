# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a batch on the host, before any model sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dovetail_tune.rows import BOUNDARY_IDS, shared_prompts
from dovetail_tune.types import Batch

_KINDS = {"tokens": "iu", "targets": "iu", "mask": "biuf", "positions": "iu", "segment_ids": "iu"}
_REQUIRED = ("tokens", "targets", "mask")


def check_pairs(batch: Batch) -> int:
    """Checks the fields of a batch, and its pairs if it has `pair_ids`.

    Both rows of a pair must have one id and one prompt. Prompts are the ids before the first target
    with mask 1. The last 4 of the shorter prompt may differ: an id may span the boundary of prompt
    and answer.

    Args:
        batch: tokens, targets i[B, S] and mask [B, S]; optionally positions and segment_ids
            i[B, S], and pair_ids i[B].

    Returns:
        Number of rows without a target that counts. They are allowed, and teach nothing.

    Raises:
        ValueError: A field is missing or has another shape or dtype; a pair has two ids or two
            prompts: names the rows.
        TypeError: `batch` is no mapping.

    Example:

        >>> import numpy as np
        >>> from dovetail_tune import check_pairs
        >>> tokens = np.array([[1, 2, 3, 4], [1, 2, 3, 5]])
        >>> mask = np.array([[0, 0, 1, 0], [0, 0, 1, 0]])
        >>> check_pairs({"tokens": tokens, "targets": tokens, "mask": mask})
        0
    """
    check_fields(batch)
    if "pair_ids" in batch:
        _check_pairs(batch)
    return int((~(np.asarray(batch["mask"]) > 0).any(axis=1)).sum())


def check_fields(batch: Any) -> None:
    """Raises ValueError unless the fields of the contract have its shapes and dtypes."""
    if not hasattr(batch, "keys"):
        raise TypeError(
            f"a batch must be a mapping of arrays by name, got {type(batch).__name__}; pass the "
            "batches of dovetail_data, or dicts of tokens, targets and mask"
        )
    missing = [name for name in _REQUIRED if name not in batch]
    if missing:
        raise ValueError(
            f"a batch must have tokens, targets and mask, got {sorted(batch)}; add "
            f"{', '.join(missing)}"
        )
    shape = np.shape(batch["tokens"])
    for name in (name for name in _KINDS if name in batch):
        x = np.asarray(batch[name])
        if x.ndim != 2 or x.shape != shape or x.dtype.kind not in _KINDS[name]:
            kind = "a number" if name == "mask" else "an integer"
            raise ValueError(
                f"{name} must be {kind} for each of the [B, S] tokens, got {name}={x.dtype}"
                f"{list(x.shape)} with tokens of {list(shape)}; make batches with dovetail_data"
            )


def check_new(batch: Batch, names: Iterable[str]) -> None:
    """Raises ValueError if the batch has one of the fields that are to be added."""
    known = [name for name in names if name in batch]
    if known:
        raise ValueError(
            f"fields to add must be new, got a batch that has {', '.join(known)}; pass another "
            "field=, or the batches without it"
        )


def prompt_lengths(batch: Batch) -> np.ndarray:
    """Returns the number of ids before the first target that counts, i[B]; 0 for rows without."""
    mask = np.asarray(batch["mask"]) > 0
    return np.where(mask.any(axis=1), mask.argmax(axis=1) + 1, 0)


def _check_pairs(batch: Batch) -> None:
    tokens, ids = np.asarray(batch["tokens"]), np.asarray(batch["pair_ids"])
    rows = len(tokens)
    if rows % 2 or ids.shape != (rows,):
        raise ValueError(
            f"pair_ids must name the pair of each of an even number of rows, got pair_ids="
            f"{ids.dtype}{list(ids.shape)} with {rows} rows; batch with dovetail_data.pairs"
        )
    if (torn := np.flatnonzero(ids[::2] != ids[1::2])).size:
        i = int(torn[0])
        raise ValueError(
            f"rows 2i and 2i + 1 must have one pair_ids, got {ids[2 * i]} in row {2 * i} and "
            f"{ids[2 * i + 1]} in row {2 * i + 1}; do not shuffle or split the rows of "
            "dovetail_data.pairs"
        )
    shared, shorter = map(np.asarray, shared_prompts(batch))
    if (other := np.flatnonzero(shared < shorter - BOUNDARY_IDS)).size:
        i = int(other[0])
        raise ValueError(
            f"rows 2i and 2i + 1 must have one prompt, got rows {2 * i} and {2 * i + 1} with "
            f"{shared[i]} equal ids where the shorter prompt has {shorter[i]}; write both answers "
            "of a record to one prompt, with dovetail_data.Preference"
        )
