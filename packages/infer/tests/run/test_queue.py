# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The bounded queues of streams and of other calls."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from engines import decoder, engine, greedy, prompts

from dovetail_infer import Completion, QueueFull, Sampling

GREEDY = Sampling(max_tokens=12, temperature=0)


@pytest.mark.parameter("max_queue")
def test_a_full_queue_refuses_a_stream_and_says_when_to_try_again() -> None:
    with engine(max_queue=2, max_rows=1) as running:
        running.pause()
        streams = [running.stream([i], GREEDY) for i in range(3)]
        streams[0].__enter__()
        streams[1].__enter__()
        with pytest.raises(QueueFull, match="at most max_queue=2") as raised:
            streams[2].__enter__()
        assert raised.value.retry_after_s > 0
        running.resume()
        for stream in streams[:2]:
            assert sum(len(piece.tokens) for piece in stream) == 12


@pytest.mark.thorough("300 requests of a batch, and 64 streams")
@pytest.mark.capability("streams beside an offline batch: none refused, a bounded wait")
def test_a_batch_takes_no_place_from_streams() -> None:
    events: list[dict[str, Any]] = []
    ids = prompts(300, longest=16)
    option = dataclasses.replace(GREEDY, max_tokens=12, ignore_eos=True)
    # The engine closes first, which ends the batch, whatever fails.
    with ThreadPoolExecutor(1) as pool, engine(events=events.append) as running:
        batch = pool.submit(running.generate, ids, option)
        while running.stats().waiting < 250:
            time.sleep(0.001)
        running.pause()
        assert running.stats().waiting >= 200  # so the batch takes each row that is free
        before = len(events)
        short = dataclasses.replace(GREEDY, max_tokens=3)
        streams = [running.stream([i % 61, 5], short) for i in range(64)]
        for stream in streams:
            stream.__enter__()
        running.resume()
        for i, stream in enumerate(streams):
            found = [token for piece in stream for token in piece.tokens.tolist()]
            assert len(found) == 3
            assert i % 8 or found == greedy(decoder(), [i, 5], 3)
        assert not batch.done()
        assert {c.finish_reason for c in batch.result(60)} == {"length"}
    added = [e["request_id"] for e in events[before:] if e["event"] == "add" and e["priority"] == 0]
    steps, first = 0, dict[int, int]()
    for event in events[before:]:
        steps += event["event"] == "step"
        if event["event"] == "sampled":
            first.setdefault(event["request_id"], steps)
    waited = [first[i] for i in added]
    assert len(waited) == 64
    # Four rows in four steps. Each then serves 16 streams of three tokens; the end of one is
    # known a step late, and its row is free a step later. Four more for equal beginnings.
    assert max(waited) <= 4 + 16 * (3 + 2) + 4


@pytest.mark.thorough
def test_a_group_is_admitted_whole_or_not_at_all() -> None:
    with engine(max_queue=4, max_rows=1) as running:
        running.pause()
        with running.streams([[1, 2], [3]], GREEDY) as pair:
            group = running.streams([[1, 2]], GREEDY, n=3)
            with pytest.raises(QueueFull, match="max_queue=4 waiting streams, got 1 more") as e:
                group.__enter__()
            assert e.value.retry_after_s > 0
            assert running.stats().waiting == 2
            with pytest.raises(ValueError, match=r"at most max_queue=4, got 5\. Begin fewer"):
                running.streams([[1]], GREEDY, n=5).__enter__()
            with running.streams([[4]], GREEDY, n=2) as other:
                assert running.stats().waiting == 4
                running.resume()
                assert len([p for _, p in other if isinstance(p, Completion)]) == 2
            assert {i for i, p in pair if isinstance(p, Completion)} == {0, 1}


@pytest.mark.thorough
def test_generate_waits_for_places() -> None:
    with engine(max_queue=2, max_rows=2) as running:
        ids = prompts(12)
        found = running.generate(ids, GREEDY)
        assert [c.tokens.tolist() for c in found] == [greedy(decoder(), x, 12) for x in ids]
