# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Times of requests, and the names of steps in a profiler's trace."""

from __future__ import annotations

import gzip
import itertools
import json
import time
from pathlib import Path

import jax
import pytest
from engines import engine, prompts

from dovetail_infer import Completion, Sampling, Times

GREEDY = Sampling(max_tokens=6, temperature=0)


def ordered(times: Times) -> list[float]:
    """The times in the order in which they must come."""
    assert times.queued_s is not None
    assert times.first_token_s is not None
    assert times.last_token_s is not None
    return [times.queued_s, times.first_token_s, times.last_token_s, times.total_s]


def test_times_lie_between_the_arrival_and_the_end_as_a_client_sees_them() -> None:
    with engine() as running:
        running.pause()
        before = time.monotonic()
        with running.stream([1, 2, 3], GREEDY) as stream:
            entered = time.monotonic()
            time.sleep(0.02)
            resumed = time.monotonic()
            running.resume()
            seen = [time.monotonic() for _ in stream]
        after = time.monotonic()
        times = ordered(stream.completion.times)
        assert times == sorted(times)
        # The arrival is in [before, entered], so each time may begin at either end.
        assert times[0] >= resumed - entered
        assert times[1] <= seen[0] - before
        assert times[3] <= after - before
        assert times[2] > times[1], "six tokens need six steps"
        (one,) = running.generate([[4]], Sampling(max_tokens=1, temperature=0))
        assert one.times.first_token_s == one.times.last_token_s
        assert "times" not in one.to_json()


@pytest.mark.thorough("an engine of its own")
def test_the_queue_is_waited_for_in_order_and_counts() -> None:
    with engine(max_rows=1, max_queue=2) as running:
        times = [ordered(c.times) for c in running.generate(prompts(6, longest=9), GREEDY)]
    # One row: each begins after the one before has its last token but for a step in flight.
    for earlier, later in itertools.pairwise(times):
        assert later[0] > earlier[1]
        assert later[3] > earlier[3]


def test_a_request_that_never_ran_has_no_times_but_its_end() -> None:
    with engine() as running:
        running.pause()
        option = Sampling(max_tokens=6, deadline_s=0.01)
        with running.streams([[1]], option) as streams:
            ((_, ended),) = streams
    assert isinstance(ended, Completion)
    assert ended.finish_reason == "deadline"
    assert (ended.times.queued_s, ended.times.first_token_s) == (None, None)
    assert ended.times.total_s >= 0.01


@pytest.mark.thorough("a trace of the profiler")
def test_a_trace_names_each_step_with_its_rows_and_tokens(tmp_path: Path) -> None:
    with engine(step_tokens=8) as running:
        running.generate(prompts(3), GREEDY)
        with jax.profiler.trace(tmp_path):
            running.generate([list(range(20)), [7]], GREEDY)
    (file,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    steps = [e for e in events if e.get("name") in ("prefill", "decode", "mixed")]
    steps.sort(key=lambda event: event["ts"])
    names = [(e["name"], int(e["args"]["rows"]), int(e["args"]["tokens"])) for e in steps]
    # 20 tokens in chunks of 8, the last with the other prompt; then both decode.
    assert names[:4] == [("prefill", 1, 8), ("prefill", 1, 8), ("prefill", 2, 5), ("decode", 2, 2)]
