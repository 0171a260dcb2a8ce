# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Batcher`: the requests to one model, joined into batches in one event loop.

One batch runs at a time. A short one runs on the event loop, a long one on the batcher's thread,
and requests gather meanwhile. An idle batcher starts in the next pass of the event loop, not at
once: all requests that arrived in one pass, from all connections, then share a batch. If several
clients wait, a short batch starts a few passes later, once no more requests arrive: the loop is
busy with them anyway. A client that is alone never waits.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dovetail_serve.errors import ExecutionError, NotReady, RequestError
from dovetail_serve.loading.costs import measure_costs
from dovetail_serve.loading.model import Model
from dovetail_serve.serving.answer import Timing
from dovetail_serve.serving.assembly import Assembly, Call, Computed
from dovetail_serve.serving.options import Batching
from dovetail_serve.serving.plan import plan
from dovetail_serve.serving.queue import Queue, Request, Slice, shut_down, too_late
from dovetail_serve.types import Array, numpy_dtype

# A batch that is expected to take less runs on the event loop. The way to the thread and back adds
# at least 40 us of CPU and of latency, several times that on a busy machine (the case "thread" of
# benchmarks/batching.py), so below that the thread costs more than it frees. Above it, the batch
# holds up the loop: 200 us is the work of a web server on about five requests.
INLINE_S = 200e-6
# Requests that are sent at the same time arrive in several passes of the event loop, above all over
# gRPC. The CPU time of a call at 32 concurrent ones (the server of benchmarks/grpc_cost.py) was
# 335 us without waiting, 297 with four passes, 235 with eight, 237 with sixteen. A pass without
# work takes a few microseconds.
EMPTY_PASSES = 8
# Longest wait of a request in passes that brought others.
GATHER_S = 1e-3

_log = logging.getLogger("dovetail_serve")


class Batcher:
    """Joins requests to one model into batches and runs them.

    All methods are called in one event loop. Call `warm_up` first, `drain` last.

    Args:
        model: The loaded model.
        batching: How requests are joined.
        finite: Answer rows with NaN or infinities with `ExecutionError`.
        on_batch: Called after each batch that ran, with its rows, its rows with padding, and the
            seconds of the program.

    Attributes:
        costs: Seconds of a run by batch size, measured by `warm_up`.
    """

    def __init__(
        self,
        model: Model,
        batching: Batching,
        *,
        finite: bool = False,
        on_batch: Callable[[int, int, float], None] | None = None,
    ) -> None:
        largest = model.batch_sizes[-1] if model.batch_sizes else 1
        self.costs: Mapping[int, float] = {}
        self._model = model
        self._batching = batching
        self._on_batch = on_batch
        # Without a batch axis, a request is one row, and rows are not joined.
        self._max_batch = (batching.max_batch or largest) if model.batch_sizes else 1
        self._default_s = math.inf if batching.timeout_ms is None else batching.timeout_ms / 1e3
        # Nothing is known of the duration of host functions.
        self._all_measured = model.manifest.before is None and model.manifest.after is None
        self._plans: dict[int, tuple[int, ...]] = {}
        self._assembly = Assembly(model, self._plan, finite=finite)
        self._queue = self._new_queue(batch_s=0.0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dovetail-serve")
        self._running: Sequence[Slice] = ()
        self._scheduled = False
        self._open = 0  # requests that wait for their answers
        self._crowded = False  # whether there were others when the last batch began
        # Rows that waited in the last pass, passes since they were fewer, begin of the wait.
        self._seen = self._empty = 0
        self._gathered_from = 0.0
        self._delay: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._refuses = "it is not warm yet"
        self._idle = asyncio.Event()

    @property
    def queued(self) -> int:
        """Number of requests that wait."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether a batch is running."""
        return bool(self._running)

    async def warm_up(self) -> None:
        """Measures each batch size on the batcher's thread. Then requests are taken."""
        self._loop = asyncio.get_running_loop()
        self.costs = await self._loop.run_in_executor(self._thread, measure_costs, self._model)
        full = self._plan(self._max_batch)
        self._queue = self._new_queue(batch_s=sum(self.costs[size] for size in full))
        self._refuses = ""

    def admit(self, *, priority: int, deadline_s: float | None) -> None:
        """Raises the error that a request which comes now would get, as `Server.admit` does."""
        seconds = self._check(priority, deadline_s)
        self._queue.check_room()
        self._queue.check_wait(priority, seconds)

    async def infer(
        self,
        inputs: Mapping[str, Array],
        rows: int,
        *,
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> tuple[Mapping[str, np.ndarray], Timing]:
        """Answers one request. Cancelling the task drops its rows that have not begun.

        Args:
            inputs: Arrays by name, of the model's dtypes, with `rows` rows. Do not change
                them before the answer: they are not copied on arrival.
            rows: Number of rows; 1 for a model without a batch axis.
            priority: Level; 0 is served first.
            deadline_s: Seconds from now. Default: that of `Batching`.

        Returns:
            Outputs by name, in memory that no other request uses, and the times of the stages.

        Raises:
            NotReady: The batcher is not warm, or is draining.
            QueueFull: Too many requests wait.
            DeadlineExceeded: The deadline passed before the result was there.
            ExecutionError: The model failed.
            RequestError: There is no such level, or the request may not be divided.
        """
        now = time.perf_counter()
        seconds = self._check(priority, deadline_s)
        if rows == 0:
            return self._no_rows(now)
        self._queue.check_wait(priority, seconds)
        call = Call(inputs, self._loop.create_future(), now)
        request = Request(rows, priority, now + seconds, call)
        self._queue.add(request, now)
        if request.deadline < self._alarm_at:
            self._set_alarm(request.deadline, now)
        if not self._running and not self._scheduled:
            self._schedule()
        self._open += 1
        try:
            await call.future
        except asyncio.CancelledError:
            self._queue.cancel(request)
            raise
        finally:
            self._open -= 1
        timing = Timing(
            queue_s=call.queue_s,
            pad_s=call.pad_s,
            compute_s=call.compute_s,
            split_s=time.perf_counter() - call.mark,
            rows=rows,
            batch_rows=call.batch_rows,
            padded_rows=call.padded_rows,
        )
        assert call.outputs is not None
        return call.outputs, timing

    def _check(self, priority: int, deadline_s: float | None) -> float:
        """Returns the seconds to the deadline. Raises unless the model takes such requests."""
        seconds = self._default_s if deadline_s is None else deadline_s
        if self._refuses:
            raise NotReady(
                f"the model must be ready, got a request while {self._refuses}; try again later"
            )
        if not seconds > 0:
            raise too_late(seconds)
        self._queue.check_level(priority)
        return seconds

    async def drain(self, grace_s: float | None) -> None:
        """Refuses new requests and answers those that it has.

        Args:
            grace_s: Seconds after which the unanswered ones get `NotReady`. A batch that runs then
                is computed and dropped. None: no limit, until another call sets one.
        """
        self._refuses = "it is shutting down"
        self._queue.close()
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._schedule()
        timer = None if grace_s is None else loop.call_later(grace_s, self._abandon)
        try:
            await self._idle.wait()
        finally:
            if not self._idle.is_set():  # this task was cancelled
                self._abandon()
            for handle in (timer, self._alarm, self._delay):
                if handle is not None:  # it would keep the model in memory
                    handle.cancel()
            self._thread.shutdown(wait=False)

    def _no_rows(self, now: float) -> tuple[dict[str, np.ndarray], Timing]:
        outputs = {
            name: np.empty(tensor.sized(0), numpy_dtype(tensor.dtype))
            for name, tensor in self._model.signature.outputs.items()
        }
        seconds = time.perf_counter() - now
        stages = {"queue_s": 0.0, "pad_s": 0.0, "compute_s": 0.0, "split_s": seconds}
        return outputs, Timing(rows=0, batch_rows=0, padded_rows=0, **stages)

    def _plan(self, rows: int) -> tuple[int, ...]:
        sizes = self._plans.get(rows)
        if sizes is None:
            sizes = self._plans[rows] = plan(rows, self.costs, self._batching.padding)
        return sizes

    def _new_queue(self, *, batch_s: float) -> Queue:
        return Queue(
            max_batch=self._max_batch,
            max_delay_s=self._batching.max_delay_ms / 1e3,
            limit=self._batching.queue,
            split=self._batching.split,
            priorities=self._batching.priorities,
            batch_s=batch_s,
        )

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._step)

    def _step(self) -> None:
        """Starts a batch, or waits for the end of the delay."""
        self._scheduled = False
        if self._running:
            return
        now = time.perf_counter()
        if self._alarm_at <= now:
            self._expire()
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        if self._gathers(now):
            self._schedule()
            return
        batch = self._queue.next(now)
        if isinstance(batch, list):
            self._start(batch, now)
        elif batch is not None:
            self._delay = self._loop.call_later(batch - now, self._step)
        elif self._refuses:
            self._idle.set()

    def _gathers(self, now: float) -> bool:
        """Whether the batch waits for another pass of the event loop, in which requests may come.

        Only several clients make it wait, and only a batch on the event loop, which would hold up
        their requests. A full batch and a deadline end the wait.
        """
        rows = self._queue.rows
        if rows == self._seen:
            self._empty += 1
        else:
            self._gathered_from = self._gathered_from if self._seen else now
            self._seen, self._empty = rows, 0
        gathers = (
            (self._open > 1 or self._crowded)
            and 0 < rows < self._max_batch
            and self._empty < EMPTY_PASSES
            and now - self._gathered_from < GATHER_S
            and now + GATHER_S < self._alarm_at
            and self._is_short(rows)
        )
        if not gathers:
            self._seen = 0
        return gathers

    def _is_short(self, rows: int) -> bool:
        """Whether a batch of `rows` rows runs on the event loop."""
        return self._all_measured and (
            math.fsum(self.costs[size] for size in self._plan(rows)) < INLINE_S
        )

    def _start(self, batch: Sequence[Slice], now: float) -> None:
        self._running, self._crowded = batch, self._open > 1
        if self._is_short(sum(stop - start for _, start, stop in batch)):
            self._run_inline(batch, now)
        else:
            self._thread.submit(self._run_on_thread, batch, now)

    def _run_inline(self, batch: Sequence[Slice], began: float) -> None:
        try:
            computed = self._assembly.run(batch)
        except Exception as error:
            computed = error
        self._finish(batch, began, computed)

    def _run_on_thread(self, batch: Sequence[Slice], began: float) -> None:
        try:
            computed = self._assembly.run(batch)
        except BaseException as error:  # even after SystemExit no caller may wait for ever
            computed = error
        self._loop.call_soon_threadsafe(self._finish, batch, began, computed)

    def _finish(
        self, batch: Sequence[Slice], began: float, computed: Computed | BaseException
    ) -> None:
        """Answers the requests whose last rows are done, and starts the next batch."""
        self._running = ()
        now = time.perf_counter()
        self._queue.finished(now - began)
        if isinstance(computed, BaseException):
            self._fail(batch, computed)
        else:
            if self._on_batch is not None and computed.rows:
                compute_s = computed.computed_at - computed.padded_at
                self._on_batch(computed.rows, computed.padded_rows, compute_s)
            for piece in batch:
                self._answer(piece, computed, began=began, now=now)
        if len(self._queue) or self._refuses:
            self._schedule()

    def _answer(self, piece: Slice, computed: Computed, *, began: float, now: float) -> None:
        request, _, stop = piece
        call: Call = request.payload
        if call.future.done():  # cancelled, expired or failed meanwhile
            return
        call.queue_s += began - call.mark
        call.pad_s += computed.padded_at - began
        call.compute_s += computed.computed_at - computed.padded_at
        call.mark = computed.computed_at
        call.batch_rows, call.padded_rows = computed.rows, computed.padded_rows
        error = computed.errors.get(request)
        if error is None and request.deadline <= now:
            error = too_late(request.deadline - request.arrival)
        if error is not None:
            self._queue.cancel(request)
            call.future.set_exception(error)
        elif stop == request.rows:
            call.future.set_result(None)

    def _fail(self, batch: Sequence[Slice], error: BaseException) -> None:
        """Answers each request of the batch with an error of its own. The batcher goes on."""
        _log.error("a batch of %d requests failed", len(batch), exc_info=error)
        reason = (str(error).splitlines() or [""])[0]  # XLA's go on for pages; the log has them
        for request, _, _ in batch:
            self._queue.cancel(request)
            failure = ExecutionError(
                f"the model must run on valid inputs, got {type(error).__name__}: {reason}; try "
                "again, and see the server's log if it fails again"
            )
            failure.__cause__ = error
            self._refuse(request, failure)

    def _expire(self) -> None:
        """Answers the requests whose deadline has passed, and sets the alarm for the next one."""
        now = time.perf_counter()
        running = [piece.request for piece in self._running]
        late = [request for request in running if request.deadline <= now]
        for request in (*self._queue.expire(now), *late):
            self._refuse(request, too_late(request.deadline - request.arrival))
        pending = [
            request.deadline for request in (*self._queue, *running) if request.deadline > now
        ]
        self._set_alarm(min(pending, default=math.inf), now)

    def _set_alarm(self, at: float, now: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(at - now, self._expire) if at < math.inf else None

    def _abandon(self) -> None:
        for request in [*self._queue, *(piece.request for piece in self._running)]:
            self._queue.cancel(request)
            self._refuse(request, shut_down())
        self._idle.set()

    def _refuse(self, request: Request, error: RequestError) -> None:
        call: Call = request.payload
        if not call.future.done():
            call.future.set_exception(error)
