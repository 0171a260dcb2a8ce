# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Counts and times of the requests to one version.

A request adds to plain integers and floats; a reader takes a copy. Nothing is computed for an
exposition until somebody reads it. All of it happens on the event loop, so there are no locks.
"""

import bisect
import dataclasses
import itertools
import time
from collections.abc import Mapping
from typing import TypeVar

from dovetail_serve.serving.answer import Timing

Key = TypeVar("Key", str, int)
Number = TypeVar("Number", int, float)

# Upper bounds in seconds of the histogram's cells: three a decade from the time of a tiny model to
# that of a slow one. A last cell has all above.
BOUNDS_S = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
    """Counts and times since a version was first loaded; of several versions, their sum.

    Attributes:
        successes: Answered requests.
        failures: Other requests, by the name of the error: "QueueFull",
            "DeadlineExceeded", "ExecutionError", "RequestError" for wrong inputs, ...;
            "cancelled" for those given up by the caller.
        rows: Rows of the answered requests.
        queue_s: Their time in the queue, summed. The four stages sum to `total_s`.
        pad_s: Time of joining and padding, summed.
        compute_s: Time of the program, summed.
        split_s: Time of dividing the results, summed.
        failed_s: Time from arrival to error of failed requests.
        histogram: Answered requests, by total time: a cell for each of `BOUNDS_S`, the
            bound included, and one for all above.
        batches: Number of batches by their rows.
        batches_s: Time of the program in these batches, summed, by their rows.
        padding_rows: Rows of padding, summed over the batches.
        last_inference: Time of the last answer, in seconds since 1970; 0 if there is none.
        loads: Number of loads of the version.
        failed_loads: Number of failed ones.
        queued: Requests waiting now.
    """

    successes: int = 0
    failures: Mapping[str, int] = dataclasses.field(default_factory=dict)
    rows: int = 0
    queue_s: float = 0.0
    pad_s: float = 0.0
    compute_s: float = 0.0
    split_s: float = 0.0
    failed_s: float = 0.0
    histogram: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    batches: dict[int, int] = dataclasses.field(default_factory=dict)
    batches_s: dict[int, float] = dataclasses.field(default_factory=dict)
    padding_rows: int = 0
    last_inference: float = 0.0
    loads: int = 0
    failed_loads: int = 0
    queued: int = 0

    @property
    def total_s(self) -> float:
        """Time from arrival to answer, summed over the answered requests."""
        return self.queue_s + self.pad_s + self.compute_s + self.split_s

    def __add__(self, other: "Statistics") -> "Statistics":
        """Returns the sums, and the later of both last times."""
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in (*_COUNTS, *_SECONDS, "queued")
        }
        return Statistics(
            **sums,
            failures=_added(self.failures, other.failures),
            histogram=tuple(map(sum, zip(self.histogram, other.histogram, strict=True))),
            batches=_added(self.batches, other.batches),
            batches_s=_added(self.batches_s, other.batches_s),
            last_inference=max(self.last_inference, other.last_inference),
        )


_COUNTS = ("successes", "rows", "padding_rows", "loads", "failed_loads")
_SECONDS = ("queue_s", "pad_s", "compute_s", "split_s", "failed_s")


class Recorder:
    """The counts of one version while it runs. Attributes are those of `Statistics`."""

    def __init__(self) -> None:
        self.successes = self.rows = self.padding_rows = self.loads = self.failed_loads = 0
        self.queue_s = self.pad_s = self.compute_s = self.split_s = self.failed_s = 0.0
        self.failures: dict[str, int] = {}
        self.histogram = [0] * (len(BOUNDS_S) + 1)
        self.batches: dict[int, int] = {}
        self.batches_s: dict[int, float] = {}
        self.last_inference = 0.0

    def answered(self, timing: Timing) -> None:
        """Adds an answered request."""
        queue_s, pad_s, compute_s, split_s = (
            timing.queue_s,
            timing.pad_s,
            timing.compute_s,
            timing.split_s,
        )
        self.successes += 1
        self.rows += timing.rows
        self.queue_s += queue_s
        self.pad_s += pad_s
        self.compute_s += compute_s
        self.split_s += split_s
        self.histogram[bisect.bisect_left(BOUNDS_S, queue_s + pad_s + compute_s + split_s)] += 1
        self.last_inference = time.time()

    def ran(self, rows: int, padded_rows: int, compute_s: float) -> None:
        """Adds a batch.

        Args:
            rows: Its rows.
            padded_rows: Its rows with padding.
            compute_s: Time of the program.
        """
        self.batches[rows] = self.batches.get(rows, 0) + 1
        self.batches_s[rows] = self.batches_s.get(rows, 0.0) + compute_s
        self.padding_rows += padded_rows - rows

    def failed(self, kind: str, seconds: float) -> None:
        """Adds a failed request: an error of class `kind` after `seconds`."""
        self.failures[kind] = self.failures.get(kind, 0) + 1
        self.failed_s += seconds

    def read(self, queued: int = 0) -> Statistics:
        """Returns a copy of the counts, with the number of waiting requests."""
        values = {name: getattr(self, name) for name in (*_COUNTS, *_SECONDS, "last_inference")}
        return Statistics(
            **values,
            failures=dict(self.failures),
            histogram=tuple(self.histogram),
            batches=dict(self.batches),
            batches_s=dict(self.batches_s),
            queued=queued,
        )


def cumulative(histogram: tuple[int, ...]) -> tuple[int, ...]:
    """Returns, for each cell, the requests up to its bound: as Prometheus counts them."""
    return tuple(itertools.accumulate(histogram))


def _added(left: Mapping[Key, Number], right: Mapping[Key, Number]) -> dict[Key, Number]:
    sums = dict(left)
    for key, value in right.items():
        sums[key] = sums[key] + value if key in sums else value
    return sums
