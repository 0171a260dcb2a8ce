# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Self times and unions of intervals, against sums over each unit of time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_profile.trace.operations import self_times, union_ps
from dovetail_profile.trace.recording import Recording

# (lane, start, duration), so close that they nest, touch and overlap
EVENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 12)), max_size=15)


def shared(events: list[tuple[int, int, int]]) -> list[int]:
    """Gives each unit of time to the event that began last; of those, to the shortest."""
    own = [0] * len(events)
    for lane in range(3):
        for time in range(40):
            open_now = [
                (start, -length, i)
                for i, (line, start, length) in enumerate(events)
                if line == lane and start <= time < start + length
            ]
            if open_now:
                own[max(open_now)[2]] += 1
    return own


@given(EVENTS)
def test_each_moment_of_a_lane_belongs_to_one_event(events: list[tuple[int, int, int]]) -> None:
    lane, start, duration = np.array(events, np.int64).reshape(-1, 3).T
    assert self_times(lane, start, duration).tolist() == shared(events)


@given(EVENTS)
def test_the_union_covers_what_an_interval_covers(events: list[tuple[int, int, int]]) -> None:
    _, start, duration = np.array(events, np.int64).reshape(-1, 3).T
    starts, stops = union_ps(start, start + duration)
    covered = {t for _, s, d in events for t in range(s, s + d)}
    assert {t for a, b in zip(starts, stops, strict=True) for t in range(a, b)} == covered
    assert (starts[1:] > stops[:-1]).all()
    assert (starts <= stops).all()


def test_self_times_of_a_trace_are_the_time_that_its_lanes_were_busy(recording: Recording) -> None:
    runs = recording.operations
    assert (runs.self_ps >= 0).all()
    assert (runs.self_ps <= runs.duration_ps).all()
    for lane in range(len(runs.lanes)):
        own = runs.select(runs.lane == lane)
        starts, stops = union_ps(own.start_ps, own.start_ps + own.duration_ps)
        assert runs.self_ps[runs.lane == lane].sum() == (stops - starts).sum()


def test_runs_are_ordered_by_lane_and_start(recording: Recording) -> None:
    runs = recording.operations
    order = np.lexsort((-runs.duration_ps, runs.start_ps, runs.lane))
    assert order.tolist() == list(range(len(runs)))
    assert len(runs.select(runs.start_ps < 0)) == 0
    with pytest.raises(IndexError):
        runs.select(np.ones(len(runs) + 1, bool))
