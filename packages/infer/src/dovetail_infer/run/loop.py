# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The thread of an engine: a bounded queue in front of its steps, deadlines, and commands."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dovetail_infer.completion import FinishReason, QueueFull
from dovetail_infer.run.request import Request
from dovetail_infer.run.steps import Steps
from dovetail_infer.stats import Stats

_log = logging.getLogger(__name__)


class Loop:
    """Runs steps in a thread until `close`. All methods may be called from any thread.

    Args:
        steps: The steps. The thread alone uses them from now on.
        max_queue: Largest number of waiting requests.
    """

    def __init__(self, steps: Steps, *, max_queue: int):
        self._steps, self._max_queue = steps, max_queue
        self._deadlines: list[tuple[float, int, Request]] = []
        self._state = threading.Condition()  # guards all that follows, and wakes the thread
        self._closed = False
        self._submitted: list[Request] = []
        self._commands: deque[Callable[[], None]] = deque()
        self._queued = 0
        self._next_id = 0
        self._thread = threading.Thread(target=self._run, name="dovetail-infer", daemon=True)
        self._thread.start()

    def submit(self, make: Callable[[int], Request], *, wait: bool) -> Request:
        """Puts a request into the queue.

        Args:
            make: Returns the request of an id.
            wait: Wait for a place in a full queue.

        Raises:
            QueueFull: The queue is full, and `wait` is False.
            RuntimeError: The engine is closed.
        """
        with self._state:
            self._check_open()
            while self._queued >= self._max_queue:
                if not wait:
                    raise self._queue_full()
                self._state.wait()
                self._check_open()
            request = make(self._next_id)
            self._next_id += 1
            self._queued += 1
            self._submitted.append(request)
            self._state.notify_all()
        return request

    def abort(self, requests: list[Request]) -> None:
        """Ends requests with `finish_reason="abort"`, after the present step."""

        def command() -> None:
            for request in requests:
                self._steps.finish(request, "abort")

        with self._state:
            if not self._closed:
                self._commands.append(command)
                self._state.notify_all()

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function in the loop's thread between two steps, and returns its result."""
        done, outcome = threading.Event(), []

        def command() -> None:
            try:
                self._steps.settle()
                outcome.append((function(), None))
            except BaseException as error:
                outcome.append((None, error))
            finally:
                done.set()

        with self._state:
            self._check_open()
            self._commands.append(command)
            self._state.notify_all()
        done.wait()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Aborts all requests and ends the thread."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stats(self) -> Stats:
        """Returns counters."""
        with self._state:
            unseen = len(self._submitted)
        return self._steps.stats(unseen=unseen)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            _log.exception("the engine has stopped")
            self._shut_down("error", f"the engine has stopped: {type(error).__name__}: {error}")
        else:
            self._shut_down("abort", None)

    def _serve(self) -> None:
        while True:
            with self._state:
                while not (self._submitted or self._commands or self._closed or self._steps.busy):
                    self._state.wait(self._next_deadline_s())
                    if self._deadlines and self._deadlines[0][0] <= time.monotonic():
                        break
                submitted, self._submitted = self._submitted, []
                commands, self._commands = self._commands, deque()
                closed = self._closed
            for request in submitted:
                self._steps.add(request)
                if request.deadline is not None:
                    due = request.deadline, request.request_id, request
                    heapq.heappush(self._deadlines, due)
            for command in commands:
                command()
            if closed:
                self._steps.settle()
                return
            self._expire()
            self._steps.advance()
            self._count_queue()

    def _next_deadline_s(self) -> float | None:
        return max(self._deadlines[0][0] - time.monotonic(), 0) if self._deadlines else None

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            self._steps.finish(heapq.heappop(self._deadlines)[2], "deadline")

    def _count_queue(self) -> None:
        with self._state:
            queued = self._steps.waiting + len(self._submitted)
            if queued < self._queued:
                self._state.notify_all()
            self._queued = queued

    def _shut_down(self, reason: FinishReason, error: str | None) -> None:
        with self._state:
            self._closed = True
            left, self._submitted = self._submitted, []
            commands, self._commands = self._commands, deque()
            self._state.notify_all()
        for request in left:
            self._steps.add(request)
        self._steps.finish_all(reason, error=error)
        for command in commands:
            command()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(
                "an engine runs requests until it is closed, got a call on a closed engine. Build "
                "a new one."
            )

    def _queue_full(self) -> QueueFull:
        times = self._steps.finish_times
        per_request = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 1.0
        return QueueFull(
            f"the queue holds at most max_queue={self._max_queue} waiting requests, got one more. "
            f"Try again in {per_request:.1f} s, or use generate, which waits.",
            retry_after_s=per_request,
        )
