# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The thread of an engine: bounded queues in front of its steps, deadlines, and commands.

Streams and the requests of other calls have a queue each. The others wait for a place in theirs,
so however many prompts a call has, it takes no place from a stream.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import jax

from dovetail_infer.completion import FinishReason, QueueFull
from dovetail_infer.run.request import Request
from dovetail_infer.run.steps import Steps
from dovetail_infer.stats import Stats

_log = logging.getLogger(__name__)


class Loop:
    """Runs steps in a thread until `close`. All methods may be called from any thread.

    Args:
        steps: The steps. The thread alone uses them from now on.
        max_queue: Largest number of waiting streams, and of other waiting requests; an attribute.
        ends: Called when the loop is closed.
    """

    def __init__(self, steps: Steps, *, max_queue: int, ends: Callable[[], None]):
        self._steps, self.max_queue, self._ends = steps, max_queue, ends
        self._deadlines: list[tuple[float, int]] = []  # a heap, with the ids of requests
        self._process_id = os.getpid()
        self._state = threading.Condition()  # guards all that follows, and wakes the thread
        self._closed = False
        self._error: str | None = None
        self._submitted: deque[Request] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._queued: Counter[bool] = Counter()  # by `Request.streams`
        self._next_id = 0
        self._thread = threading.Thread(target=self._run, name="dovetail-infer", daemon=True)
        self._thread.start()

    def submit(self, makes: Sequence[Callable[[int], Request]], *, wait: bool) -> None:
        """Puts requests into a queue, all or none.

        Args:
            makes: Return the requests of ids.
            wait: Wait for places in a full queue. False: the requests are streams.

        Raises:
            QueueFull: The queue of streams has not as many places.
            ValueError: It never has.
            RuntimeError: The engine is closed, or this is its own thread or a forked process.
        """
        self._check_caller()
        with self._state:
            self._check_open()
            while (missing := self._queued[not wait] + len(makes) - self.max_queue) > 0:
                if not wait:
                    raise self._queue_full(len(makes), missing)
                self._state.wait()
                self._check_open()
            # An interruption of `make` aborts its id, which no later request may have then.
            first, self._next_id = self._next_id, self._next_id + len(makes)
            requests = [make(first + i) for i, make in enumerate(makes)]
            self._queued[not wait] += len(requests)
            self._submitted.extend(requests)
            self._state.notify_all()

    def admit(self) -> None:
        """Raises what `submit` of one stream would raise."""
        with self._state:
            self._check_open()
            if self._queued[True] >= self.max_queue:
                raise self._queue_full(1, self._queued[True] + 1 - self.max_queue)

    def abort(self, request_ids: list[int]) -> None:
        """Ends requests with `finish_reason="abort"`, after the present step."""

        def command() -> None:
            for request_id in request_ids:
                self._steps.end(request_id, "abort")

        if os.getpid() != self._process_id:
            return
        with self._state:
            if not self._closed:
                self._commands.append(command)
                self._state.notify_all()

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function in the loop's thread between two steps, and returns its result."""
        self._check_caller()
        done, outcome = threading.Event(), []

        def command() -> None:
            try:
                if self._error is not None:
                    self._check_open()
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
        if os.getpid() != self._process_id:
            return  # a fork has no such thread, and perhaps a lock that nobody will release
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._ends()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stats(self) -> Stats:
        """Returns counters."""
        with self._state:
            unseen = len(self._submitted)
        return self._steps.stats(unseen=unseen)

    @jax.transfer_guard("allow")  # the guard of the process would hold here
    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            _log.exception("the engine has stopped")
            self._shut_down("error", f"{type(error).__name__}: {error}")
        else:
            self._shut_down("abort", None)

    def _serve(self) -> None:
        while True:
            with self._state:
                while not (self._submitted or self._commands or self._closed or self._steps.busy):
                    self._state.wait(self._next_deadline_s())
                    if self._deadlines and self._deadlines[0][0] <= time.monotonic():
                        break
                submitted, commands = len(self._submitted), len(self._commands)
                closed = self._closed
            for _ in range(submitted):
                self._add(self._submitted[0])
                self._submitted.popleft()  # what fails stays, and `_shut_down` ends it
            for _ in range(commands):
                self._commands.popleft()()
            if closed:
                self._steps.settle()
                return
            self._expire()
            self._steps.advance()
            self._count_queue()

    def _add(self, request: Request) -> None:
        self._steps.add(request)
        if request.deadline is None:
            return
        if len(self._deadlines) > 2 * self._steps.unfinished:
            # Most of these requests ended before their deadlines, which may be far.
            self._deadlines = [due for due in self._deadlines if self._steps.has(due[1])]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (request.deadline, request.request_id))

    def _next_deadline_s(self) -> float | None:
        if not self._deadlines:
            return None
        return min(max(self._deadlines[0][0] - time.monotonic(), 0), threading.TIMEOUT_MAX)

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            self._steps.end(heapq.heappop(self._deadlines)[1], "deadline")

    def _count_queue(self) -> None:
        with self._state:
            queued = self._steps.waiting()
            queued.update(request.streams for request in self._submitted)
            if queued[False] < self._queued[False]:  # a call waits for a place; a stream does not
                self._state.notify_all()
            self._queued = queued

    def _shut_down(self, reason: FinishReason, error: str | None) -> None:
        with self._state:
            self._closed, self._error = True, error
            unseen, self._submitted = list(self._submitted), deque()
            commands, self._commands = self._commands, deque()
            self._state.notify_all()
        try:
            self._steps.finish_all(reason, error=error, unseen=unseen)
        finally:
            for command in commands:
                command()

    def _check_open(self) -> None:
        if self._error is not None:
            raise RuntimeError(
                "an engine runs requests until it fails, got a call after its failure with "
                f"{self._error}. Build a new one."
            )
        if self._closed:
            raise RuntimeError(
                "an engine runs requests until it is closed, got a call on a closed engine. Build "
                "a new one."
            )

    def _check_caller(self) -> None:
        if os.getpid() != self._process_id:
            raise RuntimeError(
                f"an engine runs in the process that built it, {self._process_id}, got a call in "
                f"process {os.getpid()}, its fork. Build an engine in the process that uses it."
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "the engine's thread must not wait for itself, got a call by a function that the "
                "engine calls, such as events. Make the call in another thread."
            )

    def _queue_full(self, count: int, missing: int) -> Exception:
        if count > self.max_queue:
            return ValueError(
                "streams that begin together must find places in the queue, at most max_queue="
                f"{self.max_queue}, got {count}. Begin fewer, or build the engine with a larger "
                "max_queue."
            )
        times = self._steps.finish_times
        per_request = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 1.0
        return QueueFull(
            f"the queue holds at most max_queue={self.max_queue} waiting streams, got {missing} "
            f"more. Try again in {missing * per_request:.1f} s, or use generate, which waits.",
            retry_after_s=missing * per_request,
        )
