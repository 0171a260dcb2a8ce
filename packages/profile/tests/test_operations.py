# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Self times and unions of intervals, against sums over each unit of time."""

import numpy as np
import pytest
from encoding import Plane, Stat, hlo, trace
from hypothesis import given
from hypothesis import strategies as st

from dovetail_profile.trace.operations import self_times, union_ps
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import parse

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


def test_a_run_lasts_until_its_result_is_ready() -> None:
    def run(name: str, number: int, program: int = 7) -> dict[str, Stat]:
        shared: dict[str, Stat] = {"run_id": 1, "_pt": 15, "device_ordinal": program - 5}
        return {"hlo_op": name, "program_id": program, "_p": number} | shared

    def ready(number: int) -> dict[str, Stat]:
        return {"_c": number, "_ct": 15}

    caller = [
        ("sort", 0, 10, run("sort.1", 1)),  # others work on until 50
        ("add", 20, 5, run("add.4", 2)),
        ("end: add", 24, 1, ready(2)),
        ("while", 100, 10, run("while.2", 3)),  # its body goes on elsewhere
        ("sort", 300, 10, run("sort.1", 9)),  # its end is not in the trace
        ("sort", 400, 10, run("sort.1", 5, program=8)),  # of a program that is not in the trace
        ("add", 470, 5, {"hlo_op": "add.4", "program_id": 7}),  # without a number
        ("sort", 500, 10, run("sort.1", 6)),  # what waits for it runs before its end is recorded
    ]
    other = [
        ("end: sort", 50, 2, ready(1)),
        ("dot", 105, 75, run("dot.3", 4)),
        ("end: dot", 180, 1, ready(4)),
        ("end: while", 200, 1, ready(3)),
        ("end: sort", 450, 1, ready(5)),
        ("not the end: sort", 390, 1, ready(9)),
        ("end: add", 480, 1, {}),
        ("dot", 530, 20, run("dot.3", 7)),
        ("end: sort", 560, 1, ready(6)),
    ]
    module = hlo(
        "f", {"sort.1": "sort", "add.4": "add", "while.2": "while"}, while_2={"dot.3": "dot"}
    )
    programs = Plane("/host:metadata").kind("f(7)", {"Hlo Proto": module, "program_id": 7})
    host = Plane("/host:CPU").line("caller", caller).line("other", other)
    runs = Recording([parse(trace(host, programs))], ["h"]).operations
    assert runs.device.tolist() == [2, 2, 2, 2, 3, 0, 2, 2, 2]
    rows = zip(runs.code, runs.duration_ps, runs.self_ps, strict=True)
    assert [(runs.names[code], *map(int, rest)) for code, *rest in rows] == [
        ("sort.1", 50, 45),
        ("add.4", 5, 5),
        ("while.2", 10, 10),
        ("sort.1", 10, 10),
        ("sort.1", 50, 50),
        ("add.4", 5, 5),
        ("sort.1", 30, 30),
        ("dot.3", 75, 75),
        ("dot.3", 20, 20),
    ]
