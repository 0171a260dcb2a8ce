# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The batch contract: arrays of the batches that iterators yield and trainers take.

A batch has B rows of S slots. A slot holds one token and its target, so no slot lacks a target.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int32

from dovetail_data._arguments import require_integer, wrong

FIELDS = {
    "tokens": np.dtype(np.int32),
    "targets": np.dtype(np.int32),
    "mask": np.dtype(np.float32),
    "segment_ids": np.dtype(np.int32),
    "positions": np.dtype(np.int32),
}
"""Dtype of each field. tokens, targets: ids. mask: loss weight; 0 ignores the slot. segment_ids:
0 for padding, 1, 2, .. within a row. positions: restart at 0 in each segment."""

#: Arrays [B, S] by name: tokens, targets, mask, segment_ids and positions.
Batch = dict[str, Int32[np.ndarray, "B S"] | Float32[np.ndarray, "B S"]]


@runtime_checkable
class BatchIterator(Protocol):
    """The iterator that `to_device` takes: dictionaries of arrays, with a state that can be set."""

    def __next__(self) -> Mapping[str, np.ndarray]: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


def check_batch(batch: Mapping[str, np.ndarray], *, vocab_size: int) -> None:
    """Raises ValueError unless `batch` keeps the batch contract. Use it on batches of your own.

    The contract: tokens, targets, segment_ids and positions in int32 and mask in float32, all of
    one shape [B, S]; ids in [0, vocab_size); a finite mask >= 0, with 0 on padding; segment_ids 1,
    2, .. in runs, with 0 on padding and in the place of a damaged document; positions 0, 1, ..
    within each segment.

    Example:

        >>> import numpy as np
        >>> zeros = np.zeros((2, 4), np.int32)
        >>> batch = dict.fromkeys(["tokens", "targets", "segment_ids", "positions"], zeros)
        >>> check_batch({**batch, "mask": np.zeros((2, 4), np.float32)}, vocab_size=258)
    """
    require_integer("vocab_size", vocab_size, "Pass tokenizer.vocab_size.", least=1)
    if not isinstance(batch, Mapping):
        raise wrong("batch", "a dictionary of arrays", batch, "Pass next(batches(...)).")
    for name, dtype in FIELDS.items():
        if name not in batch:
            raise ValueError(
                f"a batch must have the fields {list(FIELDS)}: got {sorted(batch)}. Add {name!r}."
            )
        array = batch[name]
        if not isinstance(array, np.ndarray):
            raise wrong(f"batch[{name!r}]", "a NumPy array", array, "Pass numpy.asarray(...).")
        if array.dtype != dtype or array.shape != batch["tokens"].shape or array.ndim != 2:
            raise ValueError(
                f"batch[{name!r}] must be {dtype}[B, S] like tokens: got {name}={array.dtype}"
                f"{list(array.shape)}, tokens={list(batch['tokens'].shape)}. Cast or reshape it."
            )
    for name in ("tokens", "targets"):
        _require(
            (batch[name] >= 0) & (batch[name] < vocab_size),
            f"batch[{name!r}] must lie in [0, vocab_size={vocab_size})",
            batch[name],
            "Use the tokenizer that the model was built for.",
        )
    mask, segments, positions = batch["mask"], batch["segment_ids"], batch["positions"]
    _require(
        np.isfinite(mask) & (mask >= 0) & ((segments > 0) | (mask == 0)),
        "batch['mask'] must be finite, >= 0, and 0 where segment_ids is 0",
        mask,
        "Set it to 0 there.",
    )
    before = np.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    highest = np.maximum.accumulate(before, axis=1)
    begins = (before == 0) & (segments > highest)
    begins[:, 0] = segments[:, 0] == 1
    _require(
        (segments == 0) | (segments == before) | ((before > 0) & (segments == before + 1)) | begins,
        "batch['segment_ids'] must run 1, 2, .., and only rise behind a gap of 0",
        segments,
        "Number the documents of each row from 1 in their order.",
    )
    expected = np.where(segments == before, np.roll(positions, 1, axis=1) + 1, 0)
    _require(
        (positions == expected) | (segments == 0),
        "batch['positions'] must count 0, 1, .. within each segment",
        positions,
        "Restart it where segment_ids changes.",
    )


def _require(holds: np.ndarray, rule: str, values: np.ndarray, remedy: str) -> None:
    bad = np.argwhere(~holds)
    if len(bad):
        row, slot = bad[0]
        raise ValueError(f"{rule}: got {values[row, slot]} at [{row}, {slot}]. {remedy}")
