# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The iterator behind `batches`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_data._arguments import require_integer, require_name, wrong
from dovetail_data.batching.grain import DatasetIterator
from dovetail_data.batching.reader import Ahead, Reader
from dovetail_data.batching.stats import IteratorStats, Meter
from dovetail_data.corpus.corpus import CorruptDocument, CorruptError
from dovetail_data.rows.order import LeftOut
from dovetail_data.rows.rows import Arrays, Rows, Span, joined

_LISTED = 20  # corrupt documents in an error: a screenful


class Batches(DatasetIterator[Arrays]):
    """An iterator over this host's rows of each global batch: arrays of global_batch / n rows.

    The state is JSON with the entries "row" (the place in the order after the row delivered last)
    and "fingerprint" (of the inputs up to it). It is equal on all hosts and may be set on an
    iterator with another shard count or global batch. It is that of the batch delivered last,
    whatever is read ahead.

    Args:
        rows: See `batches`, for all options.
        global_batch: Rows per batch over all hosts.
        seed: Seed of the shuffle.
        shard: This host and the number of hosts.
        epochs: Number of passes over the rows.
        max_corrupt: Damaged documents that this host may read.
        threads: Threads that read ahead.
        workers: Processes that read ahead.
        leave_out: Places of the order to pass over.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        global_batch: int,
        seed: int | None,
        shard: tuple[int, int],
        epochs: int | None,
        max_corrupt: int,
        threads: int,
        workers: int,
        leave_out: Sequence[range],
    ) -> None:
        super().__init__()
        if seed is not None:
            require_integer("seed", seed, "Pass seed=0, or None for the order of the rows.")
        _check(rows, global_batch=global_batch, shard=shard, epochs=epochs)
        _check_counts(max_corrupt=max_corrupt, threads=threads, workers=workers)
        i, n = shard
        step = global_batch // rows.unit
        self._left_out = LeftOut(leave_out)
        self._end = None if epochs is None else epochs * (rows.epoch or 0)
        total = _kept(self._left_out, self._end)
        share = (i * step // n, (i + 1) * step // n)
        self._rows = rows
        self._seed = seed
        order = {"seed": seed, "total": total, "left_out": self._left_out}
        self._reader = Reader(rows, step=step, share=share, **order)
        self._shard = shard
        self._ahead: Ahead | None = None
        self._threads, self._workers = threads, workers
        self._max_corrupt = max_corrupt
        self._corrupt: dict[tuple[str, int], CorruptDocument] = {}
        self._rank = 0  # of the next batch's first row
        self._meter = Meter()

    def __len__(self) -> int:
        """Returns the number of batches from the first row on; TypeError without an end."""
        if self._reader.total is None:
            raise TypeError(
                "an iterator must end to have a length: got epochs=None. Pass epochs=1, or count "
                "the steps yourself."
            )
        return -(-self._reader.total // self._reader.step)

    def __bool__(self) -> bool:
        return True  # Grain's checkpoint handler writes `it or default`, which asks __len__

    def __repr__(self) -> str:
        batch = f"global_batch={self._reader.step * self._rows.unit}"
        state = f"seed={self._seed}, shard={self._shard}, row={self._place():,}"
        return f"Batches({self._rows!r}, {batch}, {state})"

    def __next__(self) -> Arrays:
        if self._reader.total is not None and self._rank >= self._reader.total:
            raise StopIteration
        with self._meter.waiting():
            batch, corrupt = self._take(self._rank)
            self._count(corrupt)
        self._meter.delivered(batch)
        self._rank = self._reader.clipped(self._rank + self._reader.step)
        return batch

    def batch(self, step: int) -> Arrays:
        """Returns this host's rows of global batch `step`, counted from row 0. The state stays."""
        batch, corrupt = self._reader(self._start(step))
        self._count(corrupt)
        return batch

    def explain(self, step: int) -> list[list[Span]]:
        """Returns the spans of each row of global batch `step`, over all hosts.

        It reads the corpus alone, without the run: any batch of any run, without replay.
        """
        start = self._start(step)
        places = np.arange(start, self._reader.clipped(start + self._reader.step))
        return [self._rows.explain(row) for row in self._reader.draws(places).tolist()]

    def stats(self) -> IteratorStats:
        """Returns counts of the batches delivered so far, and the time that `next` took."""
        return self._meter.stats(rows=self._drawn(), corrupt=tuple(self._corrupt.values()))

    def get_state(self) -> dict[str, Any]:
        """Returns the state after the batch delivered last: {"row": .., "fingerprint": ..}."""
        place = self._place()
        return {"row": place, "fingerprint": joined(self._identity(place))}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a state of `get_state`.

        Raises:
            ValueError: The state is of another corpus, packing, mixture or seed, or lies beyond the
                last epoch.
        """
        if not isinstance(state, Mapping):
            raise wrong("state", "a dictionary", state, "Pass what get_state returned.")
        if set(state) != {"row", "fingerprint"}:
            raise ValueError(
                f'a state must be {{"row", "fingerprint"}}: got {sorted(state)}. '
                "Pass what get_state returned."
            )
        row = state["row"]
        require_integer("row", row, "Pass what get_state returned.")
        require_name("fingerprint", state["fingerprint"], "corpus=.. rows=..")
        if row < 0 or (self._end is not None and row > self._end):
            raise ValueError(
                f"a state's row must lie in the iterator's {self._end} rows: got "
                f"row={row}. Pass the epochs that the run was started with, or more."
            )
        ours = self._identity(row)
        if state["fingerprint"] != joined(ours):
            raise ValueError(
                f"a state must be of {_difference(state['fingerprint'], ours)}: got "
                f"fingerprint={state['fingerprint']!r}, this iterator has {joined(ours)!r}. "
                "Open the rows and the seed of that run, or start anew. To leave out rows, set a "
                "state from before they were delivered."
            )
        self._rank = self._left_out.rank(row)

    def places(self, step: int) -> range:
        """Returns the places of global batch `step` in the order of the rows, over all hosts.

        They are numbered as the "row" of a state. `leave_out` takes them, so that a resumed run
        passes over this batch. Places that this iterator leaves out may lie between.
        """
        start = self._start(step)
        ranks = np.array([start, self._reader.clipped(start + self._reader.step) - 1])
        first, last = self._left_out.places(ranks).tolist()
        return range(first, last + 1)

    def close(self) -> None:
        """Stops reading ahead, after the batches being read."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        super().close()

    def __del__(self) -> None:
        if getattr(self, "_ahead", None) is not None:  # the constructor may have raised
            self.close()

    def _take(self, start: int) -> tuple[Arrays, list[CorruptDocument]]:
        if not (self._threads or self._workers):
            return self._reader(start)
        if self._ahead is None:
            self._ahead = Ahead(self._reader, threads=self._threads, workers=self._workers)
        return self._ahead.take(start)

    def _count(self, corrupt: list[CorruptDocument]) -> None:
        self._corrupt |= {(damaged.shard, damaged.document): damaged for damaged in corrupt}
        if len(self._corrupt) > self._max_corrupt:
            every = list(self._corrupt.values())
            listed = "\n".join(
                f"  document {damaged.document} in {damaged.shard}: {damaged.error}"
                for damaged in every[:_LISTED]
            )
            more = f"\n  and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
            raise CorruptError(
                f"at most max_corrupt={self._max_corrupt} documents may be corrupt: got "
                f"{len(every)}:\n{listed}{more}\nCopy these shards again or write the corpus "
                "again, or pass batches(max_corrupt=...) how many may be masked.",
                every,
            )

    def _start(self, step: int) -> int:
        require_integer("step", step, "Count from 0.")
        start = step * self._reader.step
        total = self._reader.total
        if step < 0 or (total is not None and start >= total):
            end = "" if total is None else len(self)
            raise IndexError(f"step must be in [0, {end}): got step={step}. Count from 0.")
        return start

    def _place(self) -> int:
        """Returns the place after that of the row delivered last."""
        if not self._rank:
            return 0
        return int(self._left_out.places(np.array([self._rank - 1]))[0]) + 1

    def _drawn(self) -> dict[str, int]:
        """Returns the rows delivered from each source."""
        counts = dict(self._rows.drawn(self._place()))
        for each in self._left_out.before(self._place()):
            first, last = self._rows.drawn(each.start), self._rows.drawn(each.stop)
            counts = {name: n - last[name] + first[name] for name, n in counts.items()}
        return counts

    def _identity(self, place: int) -> dict[str, str]:
        """Returns the inputs of all rows before `place`."""
        identity = {**self._rows.identity(place), "seed": str(self._seed)}
        before = self._left_out.before(place)
        return identity | ({"leave_out": str(LeftOut(before))} if before else {})


def _check(rows: Rows, *, global_batch: int, shard: tuple[int, int], epochs: int | None) -> None:
    require_integer(
        "global_batch", global_batch, "Pass the rows of a batch on all hosts, such as 256."
    )
    if epochs is not None:
        require_integer("epochs", epochs, "Pass epochs=1, or None for no end.")
    pair = shard if isinstance(shard, tuple | list) and len(shard) == 2 else (0, 0)
    for number in pair:
        require_integer("shard", number, "Pass this host and their number, such as (0, 1).")
    i, n = shard if isinstance(shard, tuple | list) and len(shard) == 2 else (0, 0)
    if not 0 <= i < n:
        raise ValueError(
            f"shard must be (i, n) with 0 <= i < n: got shard={shard}. Count hosts from 0."
        )
    unit = n * rows.unit
    if global_batch < 1 or global_batch % unit:
        of = f"the {n} hosts" if rows.unit == 1 else f"{rows.unit} rows on each of the {n} hosts"
        raise ValueError(
            f"global_batch must be a positive multiple of {of}: got "
            f"global_batch={global_batch}. Pass {max(1, global_batch // unit) * unit}."
        )
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs must be >= 1: got epochs={epochs}. Pass None for no end.")
    if epochs is not None and rows.epoch is None:
        raise ValueError(
            f"rows without an end must have epochs=None: got epochs={epochs} with a mixture that "
            'repeats its sources. Pass mix(exhausted="stop") or "drop", or count steps.'
        )


def _kept(left_out: LeftOut, total: int | None) -> int | None:
    """Returns the number of places that are not left out. None without an end."""
    if total is None:
        return None
    last = left_out.ranges[-1] if left_out.ranges else range(0)
    if last.stop > total:
        raise ValueError(
            f"leave_out must lie in the {total} rows of the epochs: got {last}. Pass places as a "
            "state's row counts them, or more epochs."
        )
    kept = left_out.rank(total)
    if not kept:
        raise ValueError(
            f"leave_out must leave a row: got {left_out!r} of {total}. Pass smaller ranges."
        )
    return kept


def _check_counts(*, max_corrupt: int, threads: int, workers: int) -> None:
    counts = {"max_corrupt": max_corrupt, "threads": threads, "workers": workers}
    for name, value in counts.items():
        require_integer(name, value, "Pass 0 or more.", least=0)
    if threads and workers:
        raise ValueError(
            f"batches must be read ahead by threads or by workers: got threads={threads}, "
            f"workers={workers}. Pass one of the two."
        )


def _difference(theirs: str, ours: Mapping[str, str]) -> str:
    """Names the inputs in which two fingerprints differ: corpus, packing, mixture, seed."""
    names = {"rows": "packing"}
    saved: dict[str, str] = {}
    for entry in theirs.split():
        name, _, value = entry.partition("=")
        saved[name] = value
    differ = [name for name in {**ours, **saved} if ours.get(name) != saved.get(name)]
    return " and ".join(f"the same {names.get(name, name)}" for name in differ)
