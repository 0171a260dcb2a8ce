# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The thread of an engine: deadlines, failures of the engine, and calls from wrong places."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import decoder, engine, greedy, prompts

from dovetail_infer import Engine, Sampling

GREEDY = Sampling(max_tokens=12, temperature=0)
PROGRAMS = Path(__file__).parent.parent / "programs"


@pytest.fixture(scope="module")
def running() -> Iterator[Engine]:
    with engine(max_queue=16) as shared:
        yield shared


@pytest.mark.parametrize("deadline_s", [1e11, float("inf")])
@pytest.mark.parameter("deadline_s")
def test_a_deadline_beyond_the_clock(running: Engine, deadline_s: float) -> None:
    running.pause()
    with running.stream([1], dataclasses.replace(GREEDY, deadline_s=deadline_s)) as stream:
        running.pause()  # the thread waits for the deadline afterwards
        running.resume()
        assert sum(len(piece.tokens) for piece in stream) == 12


def test_deadlines_of_ended_requests_are_forgotten(running: Engine) -> None:
    option = dataclasses.replace(GREEDY, max_tokens=1, deadline_s=3600)
    running.generate([[i % 61] for i in range(100)], option)
    # Twice as many as were unfinished at once, which is a full queue, four rows and a new one.
    assert len(running._loop._deadlines) <= 2 * (16 + 4) + 1


def test_a_deadline_counts_from_the_call() -> None:
    """The queue holds one request: the others wait for a place, and their time runs."""
    with engine(max_queue=1, max_rows=1) as running:
        running.pause()
        begin = time.monotonic()
        found = running.generate([[1]] * 30, dataclasses.replace(GREEDY, deadline_s=0.5))
        assert {c.finish_reason for c in found} == {"deadline"}
        assert time.monotonic() - begin < 30 * 0.5


def test_close_refuses_who_waits_for_a_place() -> None:
    running, errors = engine(max_queue=1), []
    running.pause()

    def wait() -> None:
        with pytest.raises(RuntimeError, match="closed engine") as raised:
            running.generate([[1]] * 3, GREEDY)
        errors.append(raised.value)

    thread = threading.Thread(target=wait)
    thread.start()
    while not running.stats().waiting:
        time.sleep(0.001)
    running.close()
    thread.join(60)
    assert len(errors) == 1


@pytest.mark.capability("an engine that stops ends every request")
def test_an_engine_that_stops_ends_every_request(caplog: pytest.LogCaptureFixture) -> None:
    """Also requests that its thread has not seen, and callers that wait for it."""
    running = engine()
    running.pause()
    streams = [running.stream([i], GREEDY) for i in range(3)]
    streams[0].__enter__()
    running.pause()

    def add(request: Any) -> None:
        raise MemoryError("injected")

    running._steps.add = add
    streams[1].__enter__()
    with contextlib.suppress(RuntimeError):  # the thread may be faster
        streams[2].__enter__()
        running.pause()
    for stream in streams[:2]:
        list(stream)
        assert stream.completion.finish_reason == "error"
        assert stream.completion.error == "MemoryError: injected"
    with pytest.raises(RuntimeError, match=r"failure with MemoryError: injected\. Build a new"):
        running.generate([[1]], GREEDY)
    running.close()
    assert "the engine has stopped" in caplog.text


@pytest.mark.thorough
@pytest.mark.parameter("events")
def test_events_that_fail_or_wait_touch_no_request(caplog: pytest.LogCaptureFixture) -> None:
    engines: list[Engine] = []

    def events(event: dict[str, Any]) -> None:
        if engines and event["event"] == "step":
            engines[0].pause()  # would wait for its own thread

    with engine(events=events) as running:
        engines.append(running)
        found = running.generate(prompts(4), GREEDY)
    assert [c.tokens.tolist() for c in found] == [greedy(decoder(), x, 12) for x in prompts(4)]
    assert caplog.text.count("events failed at 'step'") == 1
    assert "must not wait for itself" in caplog.text


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["open", "closed", "streaming", "paused", "fork", "thread"])
def test_the_interpreter_exits_in_every_state(how: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "exits.py"), how],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr[-2000:]
    assert "Traceback" not in done.stderr
