# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The iterator that `batches` returns."""

from typing import Any

import grain
import numpy as np

from dovetail_data.batch import Batch
from dovetail_data.order import Order
from dovetail_data.rows import Rows, Span
from dovetail_data.stats import Meter, Stats


class Batches(grain.DatasetIterator[Batch]):
    """Yields this host's part [global_batch / n, S] of each global batch.

    The state is JSON: {"row": rows delivered, "fingerprint": of corpus, packing and seed}, equal on
    all hosts; it may be set on an iterator of another shard count or global batch.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        global_batch: int,
        seed: int | None,
        shard: tuple[int, int],
        epochs: int | None,
    ) -> None:
        super().__init__()
        i, n = shard
        if not 0 <= i < n:
            raise ValueError(
                f"shard must be (i, n) with 0 <= i < n: got shard={shard}. Count hosts from 0."
            )
        if global_batch < 1 or global_batch % n:
            raise ValueError(
                f"global_batch must be a positive multiple of the {n} hosts: got "
                f"global_batch={global_batch}. Pass {max(1, global_batch // n) * n}."
            )
        if epochs is not None and epochs < 1:
            raise ValueError(f"epochs must be >= 1: got epochs={epochs}. Pass None for no end.")
        self._rows = rows
        self._order = Order(len(rows), seed=seed)
        self._global_batch = global_batch
        self._first, self._last = i * global_batch // n, (i + 1) * global_batch // n
        self._total = None if epochs is None else epochs * len(rows)
        self._fingerprint = f"{rows.fingerprint} seed={seed}"
        self._row = 0
        self._meter = Meter()

    def __len__(self) -> int:
        """Batches from the first row to the end; TypeError when there is none."""
        if self._total is None:
            raise TypeError(
                "an iterator must end to have a length: got epochs=None. Pass epochs=1, or count "
                "the steps yourself."
            )
        return -(-self._total // self._global_batch)

    def __bool__(self) -> bool:
        return True  # or `it or default`, which Grain's checkpoint handler writes, asks __len__

    def __next__(self) -> Batch:
        if self._total is not None and self._row >= self._total:
            raise StopIteration
        with self._meter.waiting():
            batch = self._read(self._row)
        self._row = self._clipped(self._row + self._global_batch)
        return batch

    def batch(self, step: int) -> Batch:
        """This host's part of global batch `step`, counted from row 0; moves nothing."""
        return self._read(self._start(step))

    def explain(self, step: int) -> list[list[Span]]:
        """Which documents are in global batch `step`: the spans of each of its rows, all hosts'.

        Needs the corpus, not the run: any batch of any run, without replay.
        """
        start = self._start(step)
        places = np.arange(start, self._clipped(start + self._global_batch))
        return [self._rows.explain(row) for row in self._order(places).tolist()]

    def stats(self) -> Stats:
        """How long `next` took, against the time between calls."""
        return self._meter.stats()

    def get_state(self) -> dict[str, Any]:
        return {"row": self._row, "fingerprint": self._fingerprint}

    def set_state(self, state: dict[str, Any]) -> None:
        if set(state) != {"row", "fingerprint"}:
            raise ValueError(
                f'a state must be {{"row", "fingerprint"}}: got {sorted(state)}. '
                "Pass what get_state returned."
            )
        if state["fingerprint"] != self._fingerprint:
            raise ValueError(
                f"a state must be of {_difference(state['fingerprint'], self._fingerprint)}: got "
                f"fingerprint={state['fingerprint']!r}, this iterator has {self._fingerprint!r}. "
                "Open what the run was started with, or start anew."
            )
        row = state["row"]
        if row < 0 or row != self._clipped(row):
            raise ValueError(
                f"a state's row must lie in the iterator's {self._total} rows: got row={row}. "
                "Pass the epochs that the run was started with, or more."
            )
        self._row = row

    def _start(self, step: int) -> int:
        start = step * self._global_batch
        if step < 0 or (self._total is not None and start >= self._total):
            end = "" if self._total is None else len(self)
            raise IndexError(f"step must be in [0, {end}): got step={step}. Count from 0.")
        return start

    def _clipped(self, row: int) -> int:
        return row if self._total is None else min(row, self._total)

    def _read(self, start: int) -> Batch:
        first, last = self._clipped(start + self._first), self._clipped(start + self._last)
        batch = self._rows.batch(self._order(np.arange(first, last)))
        missing = (self._last - self._first) - (last - first)
        if not missing:
            return batch
        return {name: np.pad(array, ((0, missing), (0, 0))) for name, array in batch.items()}


def _difference(theirs: str, ours: str) -> str:
    """Which of the corpus, the packing and the seed two fingerprints differ in."""
    names = {"corpus": "the same corpus", "rows": "the same packing", "seed": "the same seed"}
    return " and ".join(
        names[mine.split("=")[0]] for mine in ours.split() if mine not in theirs.split()
    )
