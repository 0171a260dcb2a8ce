# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import numpy as np
import pytest

from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.schedule.simulate import Arrival, Linear, simulate

LIMITS = Limits(
    page_size=4,
    step_tokens=8,
    max_rows=2,
    max_length=32,
    groups=(Group(window=None, pages=16),),
)


def test_times_and_pages_of_a_trace_worked_out_by_hand():
    trace = [
        Arrival(time_s=1.0, prompt_tokens=12, output_tokens=2),
        Arrival(time_s=1.5, prompt_tokens=3, output_tokens=1),
        Arrival(time_s=100.0, prompt_tokens=1, output_tokens=1),
    ]
    result = simulate(trace, LIMITS, seconds=Linear(fixed_s=1.0, token_s=0.25, kv_token_s=0.125))
    # Steps: 8 tokens of 0; 4 of 0 and 3 of 1; the output of 0; the third request.
    np.testing.assert_array_equal(result.step_tokens, [8, 7, 1, 1])
    np.testing.assert_array_equal(result.step_rows, [1, 2, 1, 1])
    np.testing.assert_array_equal(result.pages_used, [[2], [4], [4], [1]])
    durations = [1 + 2 + 1, 1 + 7 / 4 + 15 / 8, 1 + 1 / 4 + 13 / 8, 1 + 1 / 4 + 1 / 8]
    np.testing.assert_array_equal(result.step_s, durations)
    ends = 1 + np.cumsum(durations[:3])
    np.testing.assert_array_equal(result.step_start_s, [1, *ends[:2], 100])
    np.testing.assert_array_equal(result.wait_s, [0, ends[0] - 1.5, 0])
    np.testing.assert_array_equal(result.first_token_s, [ends[1] - 1, ends[1] - 1.5, 1.375])
    np.testing.assert_array_equal(result.end_to_end_s, [ends[2] - 1, ends[1] - 1.5, 1.375])
    np.testing.assert_array_equal(result.between_tokens_s, [durations[2]])
    summary = result.summary()
    assert summary["seconds"] == 101.375
    assert summary["output_tokens_per_s"] == 4 / 101.375
    assert summary["pages_used_peak"] == [4]
    assert summary["busy_share"] == sum(durations) / 101.375


@pytest.mark.thorough
def test_one_row_and_one_step_a_request_wait_as_in_an_m_d_1_queue():
    load, requests = 0.3, 4000
    # Exponential gaps, one of each of 4000 equal quantiles.
    quantiles = (np.arange(requests) + 0.5) / requests
    gaps = np.random.default_rng(3).permutation(-np.log(quantiles) / load)
    times = np.cumsum(gaps)
    trace = [Arrival(time_s=t, prompt_tokens=1, output_tokens=1) for t in times.tolist()]
    limits = dataclasses.replace(LIMITS, max_rows=1)
    result = simulate(trace, limits, seconds=Linear(fixed_s=1.0))
    # Each wait is the one before and its service, less the gap (Lindley 1952).
    waits = [0.0]
    for gap in gaps[1:]:
        waits.append(max(0.0, waits[-1] + 1 - gap))
    # Sums of as many terms, each of the size of the last time.
    limit = requests * np.spacing(times[-1])
    np.testing.assert_allclose(result.wait_s, waits, rtol=0, atol=limit)
    # Pollaczek and Khinchine: load / (2 (1 - load)) services. Over 200 such orders of the gaps the
    # mean has a standard deviation of 2.9 %, and three of them are allowed.
    assert result.wait_s.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.087)
    assert result.summary()["busy_share"] == pytest.approx(load, rel=0.01)


def test_a_shared_prefix_is_computed_once():
    trace = [
        Arrival(time_s=t, prompt_tokens=13, output_tokens=1, prefix="system", prefix_tokens=9)
        for t in (0.0, 10.0, 20.0)
    ]
    seconds = Linear(fixed_s=0.0, token_s=1.0)
    shared = simulate(trace, LIMITS, seconds=seconds)
    np.testing.assert_array_equal(shared.end_to_end_s, [13, 8, 5])
    assert (shared.prompt_tokens, shared.cached_tokens) == (39, 16)
    apart = simulate(trace, dataclasses.replace(LIMITS, prefix_cache=False), seconds=seconds)
    np.testing.assert_array_equal(apart.end_to_end_s, [13, 19, 19])
    own = [dataclasses.replace(arrival, prefix=None) for arrival in trace]
    assert simulate(own, LIMITS, seconds=seconds).cached_tokens == 0


def test_steps_planned_ahead_start_without_a_gap_and_admit_a_step_later():
    trace = [
        Arrival(time_s=0.0, prompt_tokens=1, output_tokens=4),
        Arrival(time_s=0.5, prompt_tokens=1, output_tokens=1),
    ]
    waits = [
        simulate(trace, LIMITS, seconds=Linear(fixed_s=1.0), ahead=ahead).wait_s.tolist()
        for ahead in (0, 1)
    ]
    assert waits == [[0, 0.5], [0, 1.5]]


def test_preemptions_are_counted():
    limits = dataclasses.replace(LIMITS, groups=(Group(window=None, pages=8),))
    trace = [Arrival(time_s=0.0, prompt_tokens=3, output_tokens=29) for _ in range(2)]
    result = simulate(trace, limits, seconds=Linear(fixed_s=1.0))
    assert result.preemptions == 1
    assert result.output_tokens == len(result.between_tokens_s) + 2
    # The second has 16 tokens when the first takes its pages; they are read again in two chunks.
    assert result.pages_used.max() == 8


@pytest.mark.parametrize("priority", [0, 1])
def test_streams_beside_an_offline_batch_wait_steps_and_not_for_its_ends(priority):
    limits = Limits(
        page_size=16,
        step_tokens=2048,
        max_rows=64,
        max_length=1024,
        groups=(Group(window=None, pages=64 * 64),),
    )
    offline = [
        Arrival(time_s=0.0, prompt_tokens=100, output_tokens=60, priority=priority)
        for _ in range(300)
    ]
    streams = [Arrival(time_s=20.0, prompt_tokens=100, output_tokens=5) for _ in range(64)]
    result = simulate([*offline, *streams], limits, seconds=Linear(fixed_s=1.0))
    first = result.first_token_s[300:]
    if priority:
        # One row a step for each, and all 6,400 tokens of their prompts fit in those steps.
        assert first.max() <= 64 + 1
    else:
        # Four times 64 of the batch come first, and the last began 20 steps ago.
        assert first.min() > 4 * 60 - 20


def test_the_table_has_a_line_for_each_number():
    trace = [Arrival(time_s=0.0, prompt_tokens=3, output_tokens=2)]
    result = simulate(trace, LIMITS, seconds=Linear(fixed_s=0.5))
    lines = dict(line.split(None, 1) for line in str(result).splitlines()[1:])
    assert lines.keys() == result.summary().keys()
    assert lines["end_to_end_s"].split() == ["1"] * 4
    assert lines["pages"] == "16"


def test_an_empty_trace_has_no_steps():
    result = simulate([], LIMITS, seconds=Linear(fixed_s=0.5))
    assert result.summary()["steps"] == 0
    assert "-" in str(result)


@pytest.mark.parametrize(
    "change",
    [{"prefix_tokens": 4}, {"prompt_tokens": 0}, {"output_tokens": 0}, {"time_s": -1.0}],
)
def test_a_bad_request_is_refused(change):
    [(name, value)] = change.items()
    arrival = Arrival(**{"time_s": 0.0, "prompt_tokens": 3, "output_tokens": 1, **change})
    with pytest.raises(
        ValueError, match=rf"a request must have .* got .*{name}={value}.*; correct"
    ):
        simulate([arrival], LIMITS, seconds=Linear(fixed_s=1.0))
