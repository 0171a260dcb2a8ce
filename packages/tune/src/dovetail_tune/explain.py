# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A batch for human readers: the tokens that carry loss, full and cut rows, faults of pairs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from dovetail_tune import _elsewhere
from dovetail_tune._shown import Pieces, Tokenizer, ids_of, runs_of
from dovetail_tune.explanation import Explanation, Faults, Pairs
from dovetail_tune.rows import BOUNDARY_IDS
from dovetail_tune.types import Batch

_PER_SLOT = ("tokens", "targets", "mask", "segment_ids", "positions")


@_elsewhere.call
def explain(batch: Batch, *, tokenizer: Tokenizer | None = None, rows: int = 10) -> Explanation:
    """Returns the tokens of a batch that carry loss, how full its rows are, and its faults.

    A batch without targets, as of an embedding loss or of prompts, has no trained tokens.

    Args:
        batch: tokens i[B, S], and optionally targets i[B, S] with mask f[B, S], segment_ids and
            positions i[B, S], pair_ids i[B]. Other fields [B, ...] are listed; those of one number
            a row are shown with the row.
        tokenizer: Decodes the ids, as those of dovetail_data. Default: ids are shown as numbers.
        rows: Number of rows to show; all of a smaller batch.

    Returns:
        Plain values on the host.

    Raises:
        ValueError: A field is missing or its shape does not fit, or `rows` is negative.
        TypeError: A field of ids has no integers, or the tokenizer cannot decode.

    Example:

        >>> from dovetail_tune import explain
        >>> batch = {"tokens": [[5, 6, 7, 0]], "targets": [[6, 7, 8, 0]], "mask": [[0, 1, 1, 0]]}
        >>> explain(batch | {"segment_ids": [[1, 1, 1, 0]]}).trained
        2
    """
    if rows < 0:
        raise ValueError(f"rows must be at least 0, got rows={rows}; leave it out for 10")
    if tokenizer is not None and (
        isinstance(tokenizer, type) or not isinstance(tokenizer, Tokenizer)
    ):
        raise TypeError(
            f"tokenizer must have decode(ids), got {tokenizer!r:.100}; pass one of dovetail_data, "
            "such as Pretrained(path) or Bytes()"
        )
    arrays = _checked(batch)
    pieces = Pieces(tokenizer)
    shape = arrays["tokens"].shape
    filled: np.ndarray = np.asarray(arrays.get("segment_ids", np.ones(shape, np.int32)) > 0)
    runs = [runs_of(arrays, row) for row in range(shape[0])]
    last = [[(stop, int(ids_of(arrays, row, start, stop)[0][-1])) for start, stop in runs[row]]
            for row in range(shape[0])]  # fmt: skip
    counted = _counted(arrays)
    weights = arrays["mask"][counted & filled] if "mask" in arrays else np.zeros(0)
    return Explanation(
        rows=tuple(pieces.row(arrays, row) for row in range(min(rows, shape[0]))),
        batch_rows=shape[0],
        length=shape[1],
        fields={name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()},
        tokens=int(filled.sum()),
        documents=sum(map(len, runs)),
        most_documents=max(map(len, runs), default=0),
        trained=int((counted & filled).sum()) if "targets" in arrays else None,
        weights=(float(weights.min()), float(weights.max())) if weights.size else None,
        empty=_numbers(~filled.any(axis=1)),
        last_ids=dict(Counter(i for ends in last for _, i in ends).most_common()),
        faults=_faults(arrays, filled, last, eos_id=pieces.eos_id),
        pairs=_pairs(arrays, filled) if "pair_ids" in arrays else None,
    )


def _checked(batch: Batch) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch on the host; raises for those that do not fit."""
    missing = {"tokens"} - set(batch)
    if len({"targets", "mask"} & set(batch)) == 1 and "targets" in batch:
        missing.add("mask")
    if missing:
        raise ValueError(
            f"a batch must have tokens, and a mask with its targets, got {sorted(batch)}; "
            f"add {', '.join(sorted(missing))}"
        )
    arrays = {name: np.asarray(x) for name, x in batch.items()}
    shape = arrays["tokens"].shape
    if len(shape) != 2 or not shape[1]:
        raise ValueError(
            f"tokens must be [rows, slots], got tokens={arrays['tokens'].dtype}{list(shape)}; "
            "write one row as tokens[None]"
        )
    for name, x in arrays.items():
        wanted = shape if name in _PER_SLOT else shape[:1]
        if (x.shape if name in (*_PER_SLOT, "pair_ids") else x.shape[:1]) != wanted:
            like = list(wanted) if name in (*_PER_SLOT, "pair_ids") else f"[{shape[0]}, ...]"
            raise ValueError(
                f"{name} must be {like} beside tokens{list(shape)}, got "
                f"{name}={x.dtype}{list(x.shape)}; give each row its own"
            )
        if name in (*_PER_SLOT, "pair_ids") and name != "mask" and x.dtype.kind not in "iu":
            raise TypeError(f"{name} must be integers, got {name}={x.dtype}; pass int32")
    return arrays


def _counted(arrays: dict[str, np.ndarray]) -> Bool[np.ndarray, "B S"]:
    """Returns True for each slot whose target carries loss, on padding too."""
    if "targets" not in arrays:
        return np.zeros(arrays["tokens"].shape, bool)
    return arrays["mask"].astype(np.float32) > 0


def _numbers(rows: Any) -> tuple[int, ...]:
    return tuple(np.flatnonzero(rows).tolist())


def _faults(
    arrays: dict[str, np.ndarray],
    filled: Bool[np.ndarray, "B S"],
    last: list[list[tuple[int, int]]],
    *,
    eos_id: int | None,
) -> Faults:
    """Returns the faults of rows.

    Args:
        arrays: The batch.
        filled: Slots that hold a token.
        last: Stop and last id of each document, by row.
        eos_id: The tokenizer's, if known.
    """
    length = arrays["tokens"].shape[1]
    ends = {i for row in last for stop, i in row if stop < length} | {eos_id}
    # The last id of a document with slots after it is one of the ends.
    cut = [bool(row) and row[-1][1] not in ends for row in last]
    if "targets" not in arrays:
        return Faults(cut=_numbers(cut))
    counted, targets = _counted(arrays), arrays["targets"]
    segments = arrays.get("segment_ids", filled.astype(np.int32))
    inside = (segments[:, :-1] == segments[:, 1:]) & filled[:, :-1] & counted[:, :-1]
    return Faults(
        untrained=_numbers(filled.any(axis=1) & ~(counted & filled).any(axis=1)),
        cut=_numbers(cut),
        shifted=_numbers((inside & (targets[:, :-1] != arrays["tokens"][:, 1:])).any(axis=1)),
        negative=_numbers((counted & (targets < 0)).any(axis=1)),
        padding=_numbers((counted & ~filled).any(axis=1)),
    )


def _pairs(arrays: dict[str, np.ndarray], filled: Bool[np.ndarray, "B S"]) -> Pairs:
    """Returns the pairs and their faults. Pairs of two empty rows are left out."""
    ids: Int[np.ndarray, " B"] = arrays["pair_ids"]
    trained = np.asarray((_counted(arrays) & filled).any(axis=1))
    identical, torn, different = [], [], []
    held = [i for i in range(0, len(ids), 2) if filled[i : i + 2].any()]
    for i in held:
        if i + 1 == len(ids) or ids[i] != ids[i + 1]:
            torn.append(i)
            continue
        chosen, rejected = (_whole(arrays, row) for row in (i, i + 1))
        if chosen == rejected:
            identical.append(i)
        elif trained[i : i + 2].all() and not _same_prompt(chosen, rejected):
            different.append(i)
    rows = [row for i in held for row in (i, i + 1) if row < len(ids)]
    return Pairs(
        count=len(held),
        identical=tuple(identical),
        torn=tuple(torn),
        different_prompts=tuple(different),
        empty_answers=tuple(row for row in rows if not trained[row]),
    )


_Whole = tuple[list[int], list[bool]]  # ids, whether each carries loss


def _whole(arrays: dict[str, np.ndarray], row: int) -> _Whole:
    documents = [ids_of(arrays, row, start, stop) for start, stop in runs_of(arrays, row)]
    return [i for ids, _ in documents for i in ids], [c for _, counts in documents for c in counts]


def _same_prompt(chosen: _Whole, rejected: _Whole) -> bool:
    prompts = [ids[: counts.index(True)] for ids, counts in (chosen, rejected)]
    pairs = enumerate(zip(chosen[0], rejected[0], strict=False))
    shared = next((k for k, (a, b) in pairs if a != b), min(len(chosen[0]), len(rejected[0])))
    return shared >= min(map(len, prompts)) - BOUNDARY_IDS
