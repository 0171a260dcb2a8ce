# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of an engine: one thread that schedules, starts and reads steps.

Results are read one step late. While the device computes step k, the host plans step k + 1 without
the tokens of step k, which stay on the device, and starts it. Only then does it read step k. A
request that ends with step k has been computed once more in step k + 1, and that row is ignored.

A step that fails ends the requests in it with `finish_reason="error"`. The cache may be lost with
it, since steps donate it, so all other running requests are computed again from their tokens.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dovetail_infer.batches import Batches
from dovetail_infer.completion import FinishReason, QueueFull
from dovetail_infer.request import Request
from dovetail_infer.schedule.plan import Plan
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.stats import PageStats, Stats
from dovetail_infer.step.executor import Executor, Handle, Want
from dovetail_infer.step.logits import Kind
from dovetail_infer.step.slots import needs_full, slot_state

_log = logging.getLogger(__name__)
NAN = "the logits of the model have NaN or +inf, or every token is banned: check its weights"


class _Started(NamedTuple):
    """A step on the device.

    Attributes:
        plan: Its plan.
        handle: Its results.
        version: Version of the weights.
    """

    plan: Plan
    handle: Handle
    version: int


class Loop:
    """Runs requests until `close`.

    Args:
        scheduler: Decides the steps.
        executor: Runs them.
        max_rows: Largest number of running requests.
        max_queue: Largest number of waiting requests.
        vocab_size: Number of token ids.
        record_experts: Whether every step returns the experts of its tokens.
        overlap: Read results one step late. False: at once.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        max_rows: int,
        max_queue: int,
        vocab_size: int,
        record_experts: bool,
        overlap: bool,
    ):
        self._scheduler, self._executor = scheduler, executor
        self._max_queue, self._vocab_size, self._overlap = max_queue, vocab_size, overlap
        self._record_experts = record_experts
        self._batches = Batches(max_rows)
        self._changed_slots: set[int] = set()  # slots whose state on the device is not neutral
        self._requests: dict[int, Request] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._started: _Started | None = None
        self._paused = self._asleep = self._closed = False
        self.version = 0
        self._counters: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._finish_times: deque[float] = deque(maxlen=64)
        self._host_s = self._step_s = 0.0
        self._state = threading.Condition()  # guards all that follows, and wakes the thread
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
        """Ends requests with `finish_reason="abort"`, soon."""

        def command() -> None:
            for request in requests:
                self._finish(request, "abort")

        with self._state:
            if not self._closed:
                self._commands.append(command)
                self._state.notify_all()

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function in the loop's thread between two steps, and returns its result."""
        done, outcome = threading.Event(), []

        def command() -> None:
            try:
                self._settle()
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

    def pause(self) -> None:
        """Starts no more steps."""
        self._paused = True

    def sleep(self) -> None:
        """Starts no more steps and frees the device."""
        self._paused = True
        if not self._asleep:
            self._forget()
            self._executor.release()
            self._asleep = True

    def resume(self) -> None:
        """Goes on after `pause` or `sleep`."""
        if self._asleep:
            self._executor.restore()
            self._asleep = False
        self._paused = False

    def update_weights(self, params: Any, *, version: int) -> None:
        """Replaces the weights. Running requests are computed again from their tokens."""
        self._executor.update_weights(params)
        self.version = version
        self._forget()
        for request in self._requests.values():
            name = namespace(version, request.sampling.adapter)
            self._scheduler.rename(request.request_id, name)

    def close(self) -> None:
        """Aborts all requests and ends the thread."""
        with self._state:
            if not self._closed:
                self._closed = True
                self._state.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stats(self) -> Stats:
        """Returns counters. Numbers of one moment may be a step apart."""
        scheduler, executor, counters = self._scheduler, self._executor, self._counters
        with self._state:
            unseen = len(self._submitted)
        return Stats(
            waiting=scheduler.waiting + unseen,
            running=scheduler.running,
            pages=tuple(
                PageStats(window=group.window, **counts._asdict())
                for group, counts in zip(scheduler.limits.groups, scheduler.pages(), strict=True)
            ),
            steps=counters["steps"],
            read_tokens=counters["read_tokens"],
            drawn_tokens=counters["drawn_tokens"],
            prompt_tokens=scheduler.counters.prompt_tokens,
            cached_tokens=scheduler.counters.cached_tokens,
            finished=dict(self._finished),
            preemptions=scheduler.counters.preemptions,
            failed_steps=counters["failed_steps"],
            late_compiles=executor.late_compiles,
            compiled=sum(program.compiled for program in executor.programs()),
            version=self.version,
            host_s=self._host_s,
            step_s=self._step_s,
        )

    # The thread.

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
                while not (self._submitted or self._commands or self._closed or self._busy()):
                    self._state.wait(self._next_deadline_s())
                    if self._deadlines and self._deadlines[0][0] <= time.monotonic():
                        break
                submitted, self._submitted = self._submitted, []
                commands, self._commands = self._commands, deque()
                closed = self._closed
            for request in submitted:
                self._add(request)
            for command in commands:
                command()
            if closed:
                self._settle()
                return
            self._expire()
            self._advance()
            self._count_queue()

    def _busy(self) -> bool:
        """Tests whether there is a step to start or to read."""
        waiting = self._scheduler.waiting or self._scheduler.running
        return self._started is not None or bool(waiting and not self._paused)

    def _add(self, request: Request) -> None:
        self._requests[request.request_id] = request
        request.scheduled.namespace = namespace(self.version, request.sampling.adapter)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.request_id))
        self._scheduler.add(request.scheduled)

    def _advance(self) -> None:
        """Starts the next step, then reads the one before it."""
        host = time.thread_time()
        started = None if self._paused else self._start()
        self._host_s += time.thread_time() - host
        if self._overlap:
            started, self._started = self._started, started
        if started is not None:
            self._finish_step(started)

    def _start(self) -> _Started | None:
        plan = self._scheduler.plan()
        if plan is None:
            return None
        try:
            for row in plan.rows:
                if row.admitted:
                    self._admit(row.slot, self._requests[row.request_id])
            batch = self._batches.build(plan, self._requests, self._scheduler.tables)
            kind, want = self._kind(plan)
            handle = self._executor.dispatch(batch, kind=kind, want=want)
        except Exception as error:
            self._settle()
            self._fail(plan, error)
            return None
        self._counters["steps"] += 1
        self._counters["read_tokens"] += plan.tokens
        return _Started(plan, handle, self.version)

    def _admit(self, slot: int, request: Request) -> None:
        rule = request.sampling.rule
        index = -1 if rule is None else self._executor.add_rule(rule)
        self._batches.admit(slot, request, rule=index)
        full = needs_full(request.sampling)
        if full or slot in self._changed_slots:
            ids, prompt = request.scheduled.ids, request.scheduled.prompt_length
            state = slot_state(
                request.sampling,
                prompt=ids[:prompt],
                output=ids[prompt:],
                vocab_size=self._vocab_size,
                eos_id=request.eos_id,
            )
            self._executor.set_slot(slot, state)
            (self._changed_slots.add if full else self._changed_slots.discard)(slot)

    def _kind(self, plan: Plan) -> tuple[Kind, frozenset[Want]]:
        """Returns the kind of program that a plan needs, and the results that are read."""
        rows = [(row, self._requests[row.request_id]) for row in plan.rows]
        asked = [request.sampling for _, request in rows]
        want: set[Want] = {"experts"} if self._record_experts else set()
        if any(s.logprobs is not None for s in asked):
            want.add("top")
        if any(s.kept for s in asked):
            want.add("kept")
        if any(request.needs_scores(row.start) for row, request in rows):
            want.add("prompt")
            return "score", frozenset(want)
        return ("full" if any(map(needs_full, asked)) else "plain"), frozenset(want)

    def _settle(self) -> None:
        """Reads the step on the device, if there is one."""
        started, self._started = self._started, None
        if started is not None:
            self._finish_step(started)

    def _finish_step(self, started: _Started) -> None:
        begin = time.monotonic()
        try:
            results = started.handle.read()
        except Exception as error:
            self._started = None  # a later step began from the lost cache
            self._fail(started.plan, error)
            return
        self._step_s += time.monotonic() - begin
        host, at = time.thread_time(), 0
        for i, row in enumerate(started.plan.rows):
            request = self._requests.get(row.request_id)
            if request is not None:
                request.read(results, start=row.start, rows=slice(at, at + row.count))
                if row.samples:
                    self._draw(request, results, i, version=started.version)
            at += row.count
        self._host_s += time.thread_time() - host

    def _draw(self, request: Request, results: Any, row: int, *, version: int) -> None:
        token = int(results.tokens[row])
        if token < 0:
            self._finish(request, "error", error=NAN)
            return
        self._counters["drawn_tokens"] += 1
        self._scheduler.sampled(request.request_id, token)
        reason = request.draw(results, row, version=version)
        if reason is not None:
            self._finish(request, reason)

    def _finish(self, request: Request, reason: FinishReason, *, error: str | None = None) -> None:
        if self._requests.pop(request.request_id, None) is None:
            return
        self._scheduler.finish(request.request_id)
        self._finished[reason] += 1
        self._finish_times.append(time.monotonic())
        try:
            request.finish(reason, error=error)
        except Exception:
            _log.exception("the completion of request %d was not delivered", request.request_id)

    def _fail(self, plan: Plan, error: Exception) -> None:
        """Ends the requests of a failed step, and computes all others again."""
        _log.error("a step with %d requests failed: %s", len(plan.rows), error, exc_info=error)
        self._counters["failed_steps"] += 1
        for row in plan.rows:
            request = self._requests.get(row.request_id)
            if request is not None:
                self._finish(request, "error", error=f"{type(error).__name__}: {error}")
        self._forget()
        self._executor.rebuild()

    def _forget(self) -> None:
        """Forgets the cache."""
        self._scheduler.reset()
        self._scheduler.drop_cache()

    def _next_deadline_s(self) -> float | None:
        return max(self._deadlines[0][0] - time.monotonic(), 0) if self._deadlines else None

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            _, request_id = heapq.heappop(self._deadlines)
            if request_id in self._requests:
                self._finish(self._requests[request_id], "deadline")

    def _count_queue(self) -> None:
        with self._state:
            queued = self._scheduler.waiting + len(self._submitted)
            if queued < self._queued:
                self._state.notify_all()
            self._queued = queued

    def _shut_down(self, reason: FinishReason, error: str | None) -> None:
        with self._state:
            self._closed = True
            left, self._submitted = self._submitted, []
            commands, self._commands = self._commands, deque()
            self._state.notify_all()
        for request in [*self._requests.values(), *left]:
            request.finish(reason, error=error)
        self._requests.clear()
        self._executor.release()
        for command in commands:
            command()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(
                "an engine runs requests until it is closed, got a call on a closed engine. Build "
                "a new one."
            )

    def _queue_full(self) -> QueueFull:
        times = self._finish_times
        per_request = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 1.0
        return QueueFull(
            f"the queue holds at most max_queue={self._max_queue} waiting requests, got one more. "
            f"Try again in {per_request:.1f} s, or use generate, which waits.",
            retry_after_s=per_request,
        )


def namespace(version: int, adapter: int | None) -> bytes:
    """Returns the namespace of block hashes: cached keys depend on weights and adapter."""
    return f"{version}/{-1 if adapter is None else adapter}".encode()
