# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Time to the first batch of a run resumed at row 10^9, against one that begins at row 0.

The rows are synthetic, 2 x 10^9 of them computed from their numbers, because no disk here holds as
many. A case opens the iterator, sets its state and reads one batch. The peer is Grain's own indexed
shuffle over as many numbers. Neither has a table of the order.
"""

import time
from collections.abc import Callable

import grain
import numpy as np

from dovetail_data import Rows, batches
from measure import report, rounds

ROWS, FAR, LENGTH, BATCH = 2 * 10**9, 10**9, 2048, 8


class Synthetic(Rows):
    """Row i holds the ids i, i + 1, .. modulo a vocabulary."""

    length = LENGTH
    tokens = ROWS * LENGTH

    def __len__(self) -> int:
        return ROWS

    def batch(self, rows, *, keys=None, corrupt=None):
        tokens = ((rows[:, None] + np.arange(LENGTH + 1)) % 32_000).astype(np.int32)
        ones = np.ones((len(rows), LENGTH), np.int32)
        positions = np.tile(np.arange(LENGTH, dtype=np.int32), (len(rows), 1))
        return {
            "tokens": tokens[:, :-1],
            "targets": tokens[:, 1:],
            "mask": ones.astype(np.float32),
            "segment_ids": ones,
            "positions": positions,
        }

    def explain(self, row):
        raise NotImplementedError

    def identity(self, place):
        return {"corpus": "synthetic"}


def ours(row: int) -> float:
    begin = time.process_time()
    it = batches(Synthetic(), global_batch=BATCH, seed=0)
    it.set_state(it.get_state() | {"row": row})
    next(it)
    return time.process_time() - begin


def grains(row: int) -> float:
    begin = time.process_time()
    rows = Synthetic()
    dataset = grain.MapDataset.range(ROWS).shuffle(seed=0)
    rows.batch(np.array([dataset[i] for i in range(row, row + BATCH)]))
    return time.process_time() - begin


def many(call: Callable[[int], float], row: int) -> float:
    """Returns the median of 200 calls: one takes less than a millisecond."""
    return float(np.median([call(row) for _ in range(200)]))


def main() -> None:
    results = rounds(
        {
            "far": lambda: many(ours, FAR),
            "first": lambda: many(ours, 0),
            "first again": lambda: many(ours, 0),
            "grain": lambda: many(grains, FAR),
            "grain again": lambda: many(grains, FAR),
        },
        repeats=9,
    )
    for case, peer, name in (
        (f"first batch at row {FAR} against row 0", "the same at row 0", "first"),
        (f"first batch at row {FAR} against Grain's shuffle there", "grain", "grain"),
    ):
        report(
            f"{case}, S={LENGTH} B={BATCH} of {ROWS} rows",
            metric="cpu_s",
            unit="s",
            values=results["far"],
            peer=peer,
            peer_values=results[name],
            peer_again=results[f"{name} again"],
        )


if __name__ == "__main__":
    main()
