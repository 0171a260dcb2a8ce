# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps: a plan, its batch, its start, and what becomes of its results.

Results are read one step late. While the device computes step k, the host plans step k + 1 without
the tokens of step k, which stay on the device, and starts it. Only then does it read step k. A
request that ends with step k has been computed once more in step k + 1, and that row is ignored.
In a trace of `jax.profiler`, the start of each step is an annotation of its `Plan.phase`.

A step that fails ends the requests in it with `finish_reason="error"`. The cache may be lost with
it, since steps donate it, so all other running requests are computed again from their tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.profiler import TraceAnnotation

from dovetail_infer.completion import FinishReason
from dovetail_infer.run.adapters import Adapters, next_version
from dovetail_infer.run.batches import Batches
from dovetail_infer.run.request import Request
from dovetail_infer.schedule.plan import Plan
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.stats import PageStats, Stats
from dovetail_infer.step import rules
from dovetail_infer.step.batch import Results
from dovetail_infer.step.executor import Executor
from dovetail_infer.step.handle import Handle, Want
from dovetail_infer.step.logits import Kind
from dovetail_infer.step.slots import needs_full, slot_state

_log = logging.getLogger(__name__)
NAN = "the logits of the model have NaN or +inf, or every token is banned: check its weights"
REFUSED = (
    "rule must return the id of a token that is not cut, got another id at run time: return "
    "jax.random.categorical(key, logits), for example"
)


class _Started(NamedTuple):
    """A step on the device.

    Attributes:
        plan: Its plan.
        handle: Its results.
    """

    plan: Plan
    handle: Handle


class Steps:
    """Runs requests step by step, in one thread.

    Args:
        scheduler: Decides the steps.
        executor: Runs them.
        adapters: The loaded adapters.
        record_experts: Whether every step returns the experts of its tokens.
        overlap: Read results one step late. False: at once.

    Attributes:
        adapters: The loaded adapters, and the versions of all weights.
        finish_times: Values of `time.monotonic()` at which the last requests finished.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        adapters: Adapters,
        record_experts: bool,
        overlap: bool,
    ):
        self._scheduler, self._executor, self.adapters = scheduler, executor, adapters
        self._record_experts, self._overlap = record_experts, overlap
        self._batches = Batches(scheduler.limits.max_rows)
        self._changed_slots: set[int] = set()  # slots whose state on the device is not neutral
        self._rules: dict[int, Any] = {}  # programs, by slot
        self._requests: dict[int, Request] = {}
        self._started: _Started | None = None
        self._paused = self._asleep = False
        self.finish_times: deque[float] = deque(maxlen=64)
        self._counters: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._host_s = self._step_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether there is a step to start or to read."""
        waiting = self._scheduler.waiting or self._scheduler.running
        return self._started is not None or bool(waiting and not self._paused)

    def waiting(self) -> Counter[bool]:
        """Returns the numbers of requests without a place in the steps, by `Request.streams`."""
        if not self._scheduler.waiting:
            return Counter()
        requests = self._requests.values()
        return Counter(r.streams for r in requests if r.scheduled.slot is None)

    @property
    def unfinished(self) -> int:
        """Number of requests that have been added and have not ended."""
        return len(self._requests)

    def has(self, request_id: int) -> bool:
        """Tests whether a request has been added and has not ended."""
        return request_id in self._requests

    def add(self, request: Request) -> None:
        """Adds a request to the queue."""
        adapter = request.sampling.adapter
        if adapter is not None and adapter not in self.adapters:
            self._deliver(request, "error", f"adapter {adapter} has been unloaded: load it again")
            return
        self._requests[request.request_id] = request
        request.scheduled.namespace = self._namespace(request)
        self._scheduler.add(request.scheduled)

    def advance(self) -> None:
        """Starts the next step, then reads the one before it."""
        host = time.thread_time()
        started = None if self._paused else self._start()
        self._host_s += time.thread_time() - host
        if self._overlap:
            started, self._started = self._started, started
        if started is not None:
            self._read(started)

    def settle(self) -> None:
        """Reads the step on the device, if there is one."""
        started, self._started = self._started, None
        if started is not None:
            self._read(started)

    def finish(self, request: Request, reason: FinishReason, *, error: str | None = None) -> None:
        """Ends a request, unless it has ended.

        Args:
            request: The request.
            reason: Its finish reason.
            error: What failed, for "error".
        """
        if self._requests.pop(request.request_id, None) is None:
            return
        self._scheduler.finish(request.request_id)
        self._deliver(request, reason, error)

    def end(self, request_id: int, reason: FinishReason) -> None:
        """Ends a request, unless it has ended."""
        request = self._requests.get(request_id)
        if request is not None:
            self.finish(request, reason)

    def finish_all(
        self, reason: FinishReason, *, error: str | None, unseen: Sequence[Request]
    ) -> None:
        """Ends all requests for good, and frees the cache.

        Args:
            reason: Their finish reason.
            error: The failure of the engine, for "error". The scheduler is then not trusted.
            unseen: Requests that were not added.
        """
        added, self._requests = self._requests, {}
        for request in {**added, **{request.request_id: request for request in unseen}}.values():
            self._deliver(request, reason, error)
        self._executor.release()
        if error is None:
            for request_id in added:
                self._scheduler.finish(request_id)

    def _deliver(self, request: Request, reason: FinishReason, error: str | None) -> None:
        self.finish_times.append(time.monotonic())
        try:
            reason = request.finish(reason, error=error)
        except Exception:
            _log.exception("the completion of request %d was not delivered", request.request_id)
        self._finished[reason] += 1
        self._drop_unused(request.sampling.adapter)

    # Between two steps, after `settle`.

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

    def update_weights(
        self, params: Any, *, version: int | None = None, adapter: int | None = None
    ) -> None:
        """Replaces the weights, or one adapter. Requests with them are computed again.

        Args:
            params: The new values.
            version: Their version. None: the next.
            adapter: The adapter. None: all that `params` has.
        """
        present = self.adapters.newest if adapter is None else self.adapters.version(adapter)
        number = next_version(version, present)
        place = None if adapter is None else self.adapters.place(adapter)
        self._executor.update_weights(params, place=place)
        self.adapters.update(adapter, number)
        requests = list(self._requests.values()) if adapter is None else self._with(adapter)
        if adapter is None:
            self._forget()
        else:
            self._scheduler.reset([request.request_id for request in requests])
        for request in requests:
            self._scheduler.rename(request.request_id, self._namespace(request))

    def load_adapter(self, params: Any) -> int:
        """Loads an adapter into a free place, and returns its id."""
        place = self.adapters.free_place()
        self._executor.update_weights(params, place=place)
        return self.adapters.add(place)

    def unload_adapter(self, adapter: int) -> threading.Event:
        """Refuses an adapter to new requests. Returns the event that its last request has ended."""
        running = len(self._with(adapter))
        if running and self._paused:
            raise RuntimeError(
                "unload_adapter waits for the requests with its adapter, got a paused engine with "
                f"{running} of them. Call resume() first."
            )
        left = self.adapters.leave(adapter)
        self._drop_unused(adapter)
        return left

    def _with(self, adapter: int | None) -> list[Request]:
        return [r for r in self._requests.values() if r.sampling.adapter == adapter]

    def _drop_unused(self, adapter: int | None) -> None:
        if adapter is not None and self.adapters.is_leaving(adapter) and not self._with(adapter):
            self.adapters.drop(adapter)

    def _namespace(self, request: Request) -> bytes:
        return self.adapters.namespace(request.sampling.adapter, request.sampling.cache_salt)

    def stats(self, *, unseen: int) -> Stats:
        """Returns counters. Numbers of one moment may be a step apart.

        Args:
            unseen: Number of requests that wait to be added.
        """
        scheduler, counters = self._scheduler, self._counters
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
            late_compiles=self._executor.late_compiles,
            compiled=sum(program.compiled for program in self._executor.programs()),
            version=self.adapters.newest,
            host_s=self._host_s,
            step_s=self._step_s,
        )

    def _start(self) -> _Started | None:
        plan = self._scheduler.plan()
        if plan is None:
            return None
        try:
            with TraceAnnotation(plan.phase, rows=len(plan.rows), tokens=plan.tokens):
                for row in plan.rows:
                    if row.admitted:
                        self._admit(row.slot, self._requests[row.request_id])
                batch = self._batches.build(plan, self._requests, self._scheduler.tables)
                kind, want = self._kind(plan)
                handle = self._executor.dispatch(batch, kind=kind, want=want, rules=self._rules)
        except Exception as error:
            self.settle()
            self._fail(plan, error)
            return None
        self._counters["steps"] += 1
        self._counters["read_tokens"] += plan.tokens
        return _Started(plan, handle)

    def _admit(self, slot: int, request: Request) -> None:
        request.begin()
        place = self.adapters.place(request.sampling.adapter)
        self._batches.admit(slot, request, place=place)
        if request.rule is not None:
            self._rules[slot] = request.rule
        else:
            self._rules.pop(slot, None)
        full = needs_full(request.sampling)
        if full or slot in self._changed_slots:
            ids, prompt = request.scheduled.ids, request.scheduled.prompt_length
            state = slot_state(
                request.sampling,
                prompt=ids[:prompt],
                output=ids[prompt:],
                vocab_size=self._executor.layout.vocab_size,
                eos_ids=request.eos_ids,
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

    def _read(self, started: _Started) -> None:
        begin = time.monotonic()
        try:
            results = started.handle.read()
        except Exception as error:
            self._started = None  # a later step began from the lost cache
            self._fail(started.plan, error)
            return
        self._step_s += time.monotonic() - begin
        host, at = time.thread_time(), 0
        of_reads = results.prompt is not None or results.experts is not None
        for i, row in enumerate(started.plan.rows):
            request = self._requests.get(row.request_id)
            if request is not None:
                if of_reads:
                    request.read(results, start=row.start, rows=slice(at, at + row.count))
                if row.samples:
                    self._draw(request, results, i)
            at += row.count
        self._host_s += time.thread_time() - host

    def _draw(self, request: Request, results: Results, row: int) -> None:
        token = int(results.tokens[row])
        if token < 0:
            self.finish(request, "error", error=REFUSED if token == rules.REFUSED else NAN)
            return
        if not self._scheduler.sampled(request.request_id, token):
            return  # drawn from a cache that was lost: the request is computed again
        self._counters["drawn_tokens"] += 1
        try:
            # That of the step too: updates come after `settle`.
            version = self.adapters.version(request.sampling.adapter)
            reason = request.draw(results, row, version=version)
        except Exception as error:  # of the tokenizer or the sink, which are not ours
            _log.exception("request %d failed", request.request_id)
            self.finish(request, "error", error=f"{type(error).__name__}: {error}")
            return
        if reason is not None:
            self.finish(request, reason)

    def _fail(self, plan: Plan, error: Exception) -> None:
        """Ends the requests of a failed step, and computes all others again."""
        _log.error("a step with %d requests failed: %s", len(plan.rows), error, exc_info=error)
        self._counters["failed_steps"] += 1
        for row in plan.rows:
            request = self._requests.get(row.request_id)
            if request is not None:
                self.finish(request, "error", error=f"{type(error).__name__}: {error}")
        self._forget()
        self._executor.rebuild()

    def _forget(self) -> None:
        """Forgets the cache."""
        self._scheduler.reset()
        self._scheduler.drop_cache()
