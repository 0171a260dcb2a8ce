# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import math
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from dovetail_serve.serving.answer import Timing
from dovetail_serve.serving.statistics import BOUNDS_S, Recorder, Statistics, cumulative

SECONDS = st.floats(0, 20, allow_nan=False)
TIMINGS = st.builds(
    Timing,
    queue_s=SECONDS,
    pad_s=SECONDS,
    compute_s=SECONDS,
    split_s=SECONDS,
    rows=st.integers(0, 9),
    batch_rows=st.integers(9, 64),
    padded_rows=st.just(64),
)


def recorded(timings, errors=(), batches=()):
    recorder = Recorder()
    for rows, padded_rows, compute_s in batches:
        recorder.ran(rows, padded_rows, compute_s)
    for timing in timings:
        recorder.answered(timing)
    for kind in errors:
        recorder.failed(kind, 0.25)
    return recorder.read()


@hypothesis.given(timings=st.lists(TIMINGS, max_size=20))
def test_counts_and_sums_are_those_of_the_requests(timings):
    statistics = recorded(timings)
    assert statistics.successes == len(timings)
    assert statistics.rows == sum(timing.rows for timing in timings)
    for stage in ("queue_s", "pad_s", "compute_s", "split_s"):
        exact = math.fsum(getattr(timing, stage) for timing in timings)
        assert getattr(statistics, stage) == pytest.approx(exact, rel=1e-12)
    total = math.fsum(timing.total_s for timing in timings)
    assert statistics.total_s == pytest.approx(total, rel=1e-12)


@pytest.mark.thorough
@hypothesis.given(timings=st.lists(TIMINGS, max_size=20))
def test_the_histogram_counts_each_request_in_one_cell(timings):
    totals = [timing.total_s for timing in timings]
    below = [sum(total <= bound for total in totals) for bound in (*BOUNDS_S, math.inf)]
    assert list(cumulative(recorded(timings).histogram)) == below


def test_a_time_equal_to_a_bound_belongs_to_its_cell():
    timing = Timing(
        queue_s=0.0, pad_s=0.0, compute_s=0.25, split_s=0.0, rows=1, batch_rows=1, padded_rows=1
    )
    assert recorded([timing]).histogram[BOUNDS_S.index(0.25)] == 1


def test_failures_are_counted_by_kind():
    statistics = recorded([], ["QueueFull", "cancelled", "QueueFull"])
    assert statistics.failures == {"QueueFull": 2, "cancelled": 1}
    assert statistics.failed_s == 0.75
    assert statistics.successes == 0


def test_batches_are_counted_by_their_rows():
    statistics = recorded([], batches=[(3, 8, 0.5), (8, 8, 1.0), (3, 4, 0.25)])
    assert statistics.batches == {3: 2, 8: 1}
    assert statistics.batches_s == {3: 0.75, 8: 1.0}
    assert statistics.padding_rows == 6


@pytest.mark.thorough
@hypothesis.given(left=st.lists(TIMINGS, max_size=8), right=st.lists(TIMINGS, max_size=8))
def test_the_sum_of_two_is_that_of_all_requests(left, right):
    added = recorded(left, ["NotReady"], [(3, 8, 0.5)])
    added += recorded(right, ["NotReady", "QueueFull"], [(3, 4, 0.25), (5, 5, 2.0)])
    together = recorded(
        [*left, *right],
        ["NotReady", "NotReady", "QueueFull"],
        [(3, 8, 0.5), (3, 4, 0.25), (5, 5, 2.0)],
    )
    for field in dataclasses.fields(Statistics):
        ours, theirs = getattr(added, field.name), getattr(together, field.name)
        if field.name == "last_inference":
            assert ours <= theirs
        else:
            assert ours == (pytest.approx(theirs) if isinstance(theirs, float) else theirs)


def test_a_copy_does_not_change_and_has_the_time_of_the_last_answer():
    timing = Timing(
        queue_s=1.0, pad_s=0.0, compute_s=0.0, split_s=0.0, rows=2, batch_rows=5, padded_rows=8
    )
    recorder = Recorder()
    empty = recorder.read(queued=3)
    before = time.time()
    recorder.answered(timing)
    recorder.failed("QueueFull", 1.0)
    assert empty == Statistics(queued=3)
    assert before <= recorder.read().last_inference <= time.time()
