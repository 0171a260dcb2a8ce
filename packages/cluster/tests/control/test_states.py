# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The timeline covers the wall time."""

import itertools
import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dovetail_cluster.control.states import Timeline

STATES = ("waiting", "starting", "running", "draining", "stuck", "restarting", "suspended")


def test_states_follow_each_other():
    timeline = Timeline()
    assert (timeline.state, timeline.since, timeline.spans) == ("waiting", 0.0, [])
    timeline.advance(1.0)
    timeline.enter("starting", 2.0)
    timeline.enter("running", 2.0)
    timeline.advance(4.0)
    timeline.enter("running", 5.0)
    timeline.enter("restarting", 7.0)
    timeline.enter("running", 7.5)
    timeline.enter("done", 9.0)
    timeline.advance(100.0)
    assert timeline.state == "done"
    assert timeline.spans == [
        ("waiting", 1.0, 2.0),
        ("running", 2.0, 7.0),
        ("restarting", 7.0, 7.5),
        ("running", 7.5, 9.0),
    ]
    assert timeline.seconds() == {"waiting": 1.0, "running": 6.5, "restarting": 0.5}
    assert json.loads(json.dumps(timeline.spans))[0] == ["waiting", 1.0, 2.0]


@pytest.mark.parametrize(
    "since, spans",
    (
        (8.0, [("waiting", 0.0, 5.0), ("running", 5.0, 8.0), ("stuck", 8.0, 11.0)]),
        (1.0, [("waiting", 0.0, 5.0), ("stuck", 5.0, 11.0)]),  # not into the state before
        (99.0, [("waiting", 0.0, 5.0), ("running", 5.0, 10.0), ("stuck", 10.0, 11.0)]),
    ),
)
def test_a_state_may_have_begun_earlier(since, spans):
    timeline = Timeline()
    timeline.advance(0.0)
    timeline.enter("running", 5.0)
    timeline.enter("stuck", 10.0, since=since)
    timeline.advance(11.0)
    assert timeline.spans == spans
    assert timeline.since == spans[-1][1]


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(STATES), st.integers(0, 9), st.none() | st.integers(0, 99)),
        min_size=1,
    )
)
def test_states_sum_to_wall_time(steps):
    timeline, now = Timeline(), 0.0
    timeline.advance(now)
    for state, more, since in steps:
        now += more
        timeline.enter(state, now, since=None if since is None else float(since))
    assert sum(timeline.seconds().values()) == now  # whole numbers: exact
    spans = timeline.spans
    assert all(a[2] == b[1] for a, b in itertools.pairwise(spans))
