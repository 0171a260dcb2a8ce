# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import threading

import pytest

from dovetail_train.loop import clock
from dovetail_train.loop.clock import Completion, Completions

LIMIT_S = 120  # only turns a hang into a failure


class _Result:
    """A result that is ready when the test says so."""

    def __init__(self, error=None):
        self.ready, self.awaited, self.error = threading.Event(), threading.Event(), error

    def is_ready(self):
        return self.ready.is_set()

    def block_until_ready(self):
        self.awaited.set()
        assert self.ready.wait(LIMIT_S)
        if self.error is not None:
            raise self.error


class _Time:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def watched():
    """Completions on a clock that the test moves, and three results added to them."""
    time, results = _Time(), [_Result() for _ in range(3)]
    completions = Completions(time)
    for result in results:
        completions.add(result)
    yield time, completions, results
    for result in results:
        result.ready.set()
    completions.close()


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "dovetail-completions"]


def test_results_are_stamped_while_the_main_thread_is_busy(watched):
    time, completions, results = watched
    for i, result in enumerate(results):
        assert result.awaited.wait(LIMIT_S)
        assert not completions.has_next()
        time.now = 101.0 + i
        result.ready.set()
        assert completions.next() == Completion(101.0 + i, 1)


def test_results_that_are_complete_at_once_share_a_time(watched):
    time, completions, results = watched
    assert results[0].awaited.wait(LIMIT_S)
    time.now = 107.0
    results[1].ready.set()  # before the first: the thread could not look in between
    results[0].ready.set()
    assert [completions.next() for _ in range(2)] == [Completion(107.0, 2), Completion(107.0, 1)]
    time.now = 109.0
    results[2].ready.set()
    assert completions.next() == Completion(109.0, 1)


def test_the_devices_are_idle_from_the_last_completion_on(watched):
    time, completions, results = watched
    assert Completions(time).idle_since() == float("-inf")
    assert completions.idle_since() is None
    for result in results:
        result.ready.set()
    for _ in results:
        completions.next()
    time.now = 150.0
    assert completions.idle_since() == 100.0
    another = _Result()
    completions.add(another)
    assert completions.idle_since() is None
    another.ready.set()


def test_a_failed_result_is_complete(watched):
    _, completions, results = watched
    for result in results:
        result.ready.set()
    failed = _Result(RuntimeError("the device is gone"))
    failed.ready.set()
    completions.add(failed)
    assert [completions.next().at_s for _ in range(4)] == [100.0] * 4


def test_close_waits_for_the_result_that_is_computed_and_for_no_other():
    Completions(_Time()).close()  # without a result there is no thread
    completions, second = Completions(_Time()), _Result()

    class First(_Result):
        def block_until_ready(self):
            self.awaited.set()
            while not completions._closed:  # complete only after close has begun
                pass

    first = First()
    completions.add(first)
    completions.add(second)
    assert first.awaited.wait(LIMIT_S)
    completions.close()
    assert _threads() == []
    assert not second.awaited.is_set()


def test_a_result_that_never_comes_does_not_hold_close(monkeypatch, caplog):
    monkeypatch.setattr(clock, "_CLOSE_S", 0.0)
    completions, lost = Completions(_Time()), _Result()
    completions.add(lost)
    assert lost.awaited.wait(LIMIT_S)
    (thread,) = _threads()
    completions.close()
    assert "a step is still on its way after 0.0 s; its result is lost" in caplog.text
    lost.ready.set()
    thread.join(LIMIT_S)
    assert _threads() == []
