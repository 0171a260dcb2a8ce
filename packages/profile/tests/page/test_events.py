# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces for Perfetto: operations and annotations are complete, Python's calls are bounded."""

import json
from collections import Counter

import numpy as np
import pytest

from dovetail_profile.page.events import events, kept
from dovetail_profile.trace.recording import Recording


def loaded(recording, mask):
    return json.loads("".join(events(recording, mask)))


@pytest.fixture
def trace_of(recording):
    return loaded(recording, kept(recording, 10**6))


def test_all_operations_and_spans_are_events_with_their_times(recording, trace_of):
    runs, spans = recording.operations, recording.spans
    assert trace_of["otherData"] == {"events left out": 0}
    named = Counter(e["name"] for e in trace_of["traceEvents"] if e["ph"] == "X")
    names = [runs.names[i] for i in runs.code] + [spans.names[i] for i in spans.code]
    assert named == Counter(names)
    times = sum(e["dur"] for e in trace_of["traceEvents"] if e["ph"] == "X")
    expected = (runs.duration_ps.sum() + spans.duration_ps.sum()) / 1e6
    # Each is rounded to a nanosecond.
    assert times == pytest.approx(expected, abs=0.0005 * len(names))


def test_operations_have_program_scope_and_source_and_lie_in_a_device(recording, trace_of):
    device = [e for e in trace_of["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert len(device) == len(recording.operations)
    event = next(e for e in device if e.get("cat") == "dot")
    module = next(m for m in recording.modules.values() if m.name == event["args"]["program"])
    instruction = module.instructions[event["name"]]
    assert event["args"]["scope"] == instruction.scope
    assert event["args"]["source"] == str(module.source(instruction))
    (host,) = recording.hosts
    processes = {
        e["pid"]: e["args"]["name"] for e in trace_of["traceEvents"] if e["name"] == "process_name"
    }
    assert processes == {0: f"host {host}", 1: f"device 0 of {host}"}
    threads = {(e["pid"], e["tid"]) for e in trace_of["traceEvents"] if e["name"] == "thread_name"}
    assert threads == {(e["pid"], e["tid"]) for e in trace_of["traceEvents"] if e["ph"] == "X"}


def test_hosts_share_one_clock(recordings):
    first, second = recordings.values()
    both = Recording([*first.spaces, *second.spaces], ["a", "b"])
    starts = [space.plane("Task Environment").stats["profile_start_time"] for space in both.spaces]
    mask = np.ones(len(both.spans), bool)
    devices = [e for e in loaded(both, mask)["traceEvents"] if e["ph"] == "X" and e["pid"] > 1]
    for host, recording in enumerate((first, second)):
        began = min(e["ts"] for e in devices if e["pid"] == 2 + host)
        expected = starts[host] - min(starts) + recording.operations.start_ps.min() / 1e3
        assert began * 1e3 == pytest.approx(expected, abs=1)  # ns, as the file has them
    assert starts[0] != starts[1]


def test_the_shortest_calls_of_python_are_left_out_first(recording, monkeypatch):
    monkeypatch.setattr("dovetail_profile.page.events._PYTHON", "CSE")  # in the place of "$"
    spans = recording.spans
    calls = spans.named("CSEPass")
    assert calls.sum() > 2
    others = len(recording.operations) + int((~calls).sum())
    mask = kept(recording, others + 2)
    assert mask[~calls].all()
    longest = np.sort(spans.duration_ps[calls])[::-1][:2]
    assert sorted(spans.duration_ps[calls & mask]) == sorted(longest)
    trace = loaded(recording, mask)
    assert trace["otherData"] == {"events left out": int(calls.sum()) - 2}
    assert kept(recording, 0)[~calls].all()
