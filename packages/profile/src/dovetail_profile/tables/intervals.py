# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals of time: starts and stops in picoseconds."""

import numpy as np

from dovetail_profile.trace.operations import Operations, union_ps
from dovetail_profile.trace.spans import Spans

Intervals = tuple[np.ndarray, np.ndarray]  # int64 [intervals] each

NONE: Intervals = np.zeros(0, np.int64), np.zeros(0, np.int64)


def intervals(events: Operations | Spans, mask: np.ndarray) -> Intervals:
    """Returns the intervals of the events of a mask or of an array of indices."""
    start = events.start_ps[mask]
    return start, start + events.duration_ps[mask]


def before_ps(union: Intervals, at: np.ndarray) -> np.ndarray:
    """Returns how much of a union (see `union_ps`) lies before each of some times."""
    start, stop = union
    covered = np.append(0, np.cumsum(stop - start))
    i = np.searchsorted(start, at, side="right")
    return covered[i] - np.maximum(np.append(0, stop)[i] - at, 0) * (i > 0)


def busy(runs: Operations) -> dict[tuple[int, int], Intervals]:
    """Returns the union of the runs of each device, by host and device."""
    unions = {}
    for host in np.unique(runs.host).tolist():
        local = runs.host == host
        for device in np.unique(runs.device[local]).tolist():
            unions[host, device] = union_ps(*intervals(runs, local & (runs.device == device)))
    return unions
