# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.schedule.replay import LogError, replay
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.schedule.sequence import Sequence

LIMITS = Limits(
    page_size=4,
    step_tokens=8,
    max_rows=2,
    max_length=16,
    groups=(Group(window=None, pages=6), Group(window=5, pages=5)),
    prefill_tokens=3,
)


@pytest.fixture
def log():
    """The lines of a run with every kind of event."""
    lines = []
    scheduler = Scheduler(LIMITS, record=lambda event: lines.append(json.dumps(event)))
    for i in range(3):
        scheduler.add(
            Sequence(
                request_id=i,
                ids=[1, 2, 3, 4, i],
                prompt_length=5,
                max_total=9,
                namespace=b"v1",
                priority=i,
            )
        )
    for token in range(3):
        for row in scheduler.plan().rows:
            scheduler.sampled(row.request_id, token)
    scheduler.reset([1])
    scheduler.finish(0)
    scheduler.drop_cache()
    scheduler.plan()
    scheduler.reset()
    scheduler.plan()
    return lines


def test_a_replay_makes_the_same_events(log):
    assert {json.loads(line)["event"] for line in log} == {
        *("limits", "add", "step", "sampled", "finish", "reset", "drop_cache")
    }
    scheduler = replay(log)
    assert (scheduler.running, scheduler.waiting) == (2, 0)
    assert scheduler.limits == LIMITS


def test_the_first_plan_that_differs_is_named(log):
    steps = [i for i, line in enumerate(log) if json.loads(line)["event"] == "step"]
    event = json.loads(log[steps[2]])
    event["rows"][0][3] += 1
    log[steps[2]] = json.dumps(event)
    with pytest.raises(
        LogError, match=f"make the events of the log, got line {steps[2] + 1}: .*again"
    ):
        replay(log)


@pytest.mark.parametrize("line", ["{", "[]", '{"event": "fly"}', '{"event": "add"}', "3"])
@pytest.mark.parametrize("number", [1, 4])
def test_a_line_that_is_no_event_is_named(log, line, number):
    log[number - 1] = line
    with pytest.raises(
        LogError, match=rf"must be an event, .* got line {number}: .*; pass the log"
    ):
        replay(log)


def test_an_empty_log_is_refused():
    with pytest.raises(LogError, match="begin with limits, got no line; pass a log"):
        replay([])
