# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Simulation of an engine's queue, for capacity planning: the real scheduler, and no model.

The scheduler of the engine plans each step of a trace. A model of the step's duration takes the
place of the device. `python -m dovetail_infer.schedule simulate TRACE.jsonl --pages 4096` prints
the same table for a file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from jaxtyping import Float64, Int64

from dovetail_infer.schedule.plan import Limits, Plan
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.schedule.sequence import Sequence

PERCENTILES = (50, 90, 99)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request of a trace.

    Attributes:
        time_s: Time of its arrival.
        prompt_tokens: Number of tokens of its prompt, the shared prefix included.
        output_tokens: Number of tokens that it draws.
        prefix: Name of a prefix that other requests have too. None: no token is shared.
        prefix_tokens: Number of tokens of the prefix.
        priority: Lower runs earlier, see `Sequence.priority`.
    """

    time_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: str | None = None
    prefix_tokens: int = 0
    priority: int = 0

    def check(self) -> None:
        """Refuses a request without tokens, or with a prefix beyond its prompt."""
        prefix, prompt, output = self.prefix_tokens, self.prompt_tokens, self.output_tokens
        if not (0 <= prefix <= prompt and prompt >= 1 and output >= 1 and self.time_s >= 0):
            raise ValueError(
                "a request must have time_s >= 0, prompt_tokens >= 1, output_tokens >= 1 and "
                f"prefix_tokens <= prompt_tokens, got time_s={self.time_s}, "
                f"prompt_tokens={prompt}, output_tokens={output}, prefix_tokens={prefix}; correct "
                "the request"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """Duration of a step, linear in its tokens and in the keys that its rows read.

    Attributes:
        fixed_s: Seconds of any step, such as reading the weights.
        token_s: Seconds per token of the step.
        kv_token_s: Seconds per cached token of its rows.
    """

    fixed_s: float
    token_s: float = 0.0
    kv_token_s: float = 0.0

    def __call__(self, plan: Plan) -> float:
        """Returns the seconds of a step."""
        kv_tokens = sum(row.start + row.count for row in plan.rows)
        return self.fixed_s + self.token_s * plan.tokens + self.kv_token_s * kv_tokens


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """Times of requests, and the load of each step.

    `str()` gives a table, `summary()` the same numbers.

    Attributes:
        wait_s: From arrival to the start of the first step, for each request.
        first_token_s: From arrival to the first token.
        end_to_end_s: From arrival to the last token.
        between_tokens_s: From each token to the next of its request, over all requests.
        step_start_s: Start of each step.
        step_s: Duration of each step.
        step_rows: Requests of each step.
        step_tokens: Tokens of each step.
        pages_used: Used pages of each group during each step.
        pages: Number of pages of each group.
        prompt_tokens: Tokens of all prompts.
        cached_tokens: Those found in the prefix cache.
        output_tokens: Tokens that were drawn.
        preemptions: Requests that lost their pages to older ones.
    """

    wait_s: Float64[np.ndarray, " R"]
    first_token_s: Float64[np.ndarray, " R"]
    end_to_end_s: Float64[np.ndarray, " R"]
    between_tokens_s: Float64[np.ndarray, " I"]
    step_start_s: Float64[np.ndarray, " S"]
    step_s: Float64[np.ndarray, " S"]
    step_rows: Int64[np.ndarray, " S"]
    step_tokens: Int64[np.ndarray, " S"]
    pages_used: Int64[np.ndarray, "S G"]
    pages: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int

    def summary(self) -> dict[str, object]:
        """Returns the numbers of the table, as JSON values. Times are in seconds."""
        end_s = float(self.step_start_s[-1] + self.step_s[-1]) if len(self.step_s) else 0.0
        busy_s = float(self.step_s.sum())
        weights = self.step_s / busy_s if busy_s else self.step_s
        times = {
            "wait_s": self.wait_s,
            "first_token_s": self.first_token_s,
            "between_tokens_s": self.between_tokens_s,
            "end_to_end_s": self.end_to_end_s,
        }
        return {
            "requests": len(self.wait_s),
            "seconds": end_s,
            "busy_share": busy_s / end_s if end_s else 0.0,
            "steps": len(self.step_s),
            "rows_mean": float(weights @ self.step_rows),
            "output_tokens_per_s": self.output_tokens / end_s if end_s else 0.0,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "preemptions": self.preemptions,
            **{name: _percentiles(values) for name, values in times.items()},
            "pages": list(self.pages),
            "pages_used_mean": (weights @ self.pages_used).tolist(),
            "pages_used_peak": self.pages_used.max(axis=0, initial=0).tolist(),
        }

    def __str__(self) -> str:
        lines = [f"{'':<18}{'mean':>12}" + "".join(f"{f'p{p}':>12}" for p in PERCENTILES)]
        for name, value in self.summary().items():
            if isinstance(value, dict):
                shown = ("-" if v is None else f"{v:.4g}" for v in value.values())
                lines.append(f"{name:<18}" + "".join(f"{v:>12}" for v in shown))
        for name, value in self.summary().items():
            if isinstance(value, list):
                shown = "".join(f"{v:>12.6g}" for v in value)
                lines.append(f"{name:<18}{shown}")
            elif not isinstance(value, dict):
                lines.append(f"{name:<18}{value:>12.6g}")
        return "\n".join(line.rstrip() for line in lines)


def simulate(
    arrivals: Iterable[Arrival],
    limits: Limits,
    *,
    seconds: Callable[[Plan], float],
    ahead: int = 0,
) -> Simulation:
    """Runs a trace through a scheduler.

    Args:
        arrivals: Requests, in any order.
        limits: Sizes of the engine.
        seconds: Duration of a step, such as `Linear`.
        ahead: Steps that are planned before the result of the running one has come: 1 for an engine
            that reads results one step late, 0 for one that waits.

    Returns:
        The times of all requests and the load of each step.

    Raises:
        ValueError: If a request is longer than `limits.max_length`, or has no tokens.

    Example:
        >>> from dovetail_infer.schedule.plan import Group, Limits
        >>> limits = Limits(page_size=16, step_tokens=256, max_rows=8, max_length=128,
        ...                 groups=(Group(window=None, pages=64),))
        >>> trace = [Arrival(time_s=0.0, prompt_tokens=100, output_tokens=3) for _ in range(2)]
        >>> simulate(trace, limits, seconds=Linear(fixed_s=0.5)).end_to_end_s
        array([1.5, 1.5])
    """
    run = _Run(sorted(arrivals, key=lambda arrival: arrival.time_s), limits)
    steps: list[tuple[float, float, int, int, list[int]]] = []
    in_flight: list[tuple[Plan, float]] = []
    now = free = 0.0
    while True:
        while len(in_flight) <= ahead:
            run.add_until(now)
            plan = run.scheduler.plan()
            if plan is None:
                break
            start, duration = max(now, free), seconds(plan)
            free = start + duration
            used = [counts.used for counts in run.scheduler.pages()]
            steps.append((start, duration, len(plan.rows), plan.tokens, used))
            run.start(plan, start)
            in_flight.append((plan, free))
        if in_flight:
            plan, now = in_flight.pop(0)
            run.end(plan, now)
        elif (arrival := run.next_arrival_s()) is not None:
            now = arrival
        else:
            return run.result(steps)


class _Run:
    """Requests of a simulation, with the times of their tokens."""

    def __init__(self, arrivals: list[Arrival], limits: Limits) -> None:
        self.scheduler = Scheduler(limits)
        self._arrivals = arrivals
        self._added = 0
        self._prefixes: dict[str, int] = {}
        self._sequences: dict[int, Sequence] = {}
        self._starts = np.full(len(arrivals), np.nan)
        self._firsts = np.full(len(arrivals), np.nan)
        self._lasts = np.full(len(arrivals), np.nan)
        self._between: list[float] = []

    def next_arrival_s(self) -> float | None:
        """Returns the time of the next request, or None after the last."""
        if self._added == len(self._arrivals):
            return None
        return self._arrivals[self._added].time_s

    def add_until(self, now: float) -> None:
        """Adds the requests that have arrived."""
        while self._added < len(self._arrivals) and self._arrivals[self._added].time_s <= now:
            arrival, request_id = self._arrivals[self._added], self._added
            arrival.check()
            ids = self._ids(arrival, request_id)
            self._sequences[request_id] = Sequence(
                request_id=request_id,
                ids=ids,
                prompt_length=len(ids),
                max_total=len(ids) + arrival.output_tokens,
                priority=arrival.priority,
            )
            self.scheduler.add(self._sequences[request_id])
            self._added += 1

    def _ids(self, arrival: Arrival, request_id: int) -> list[int]:
        """Returns ids that are equal in requests with the same prefix, and nowhere else."""
        shared = arrival.prefix_tokens if arrival.prefix is not None else 0
        number = self._prefixes.setdefault(arrival.prefix or "", len(self._prefixes))
        return [number] * shared + [-1 - request_id] * (arrival.prompt_tokens - shared)

    def start(self, plan: Plan, start: float) -> None:
        """Notes the start of a step."""
        for row in plan.rows:
            if np.isnan(self._starts[row.request_id]):
                self._starts[row.request_id] = start

    def end(self, plan: Plan, end: float) -> None:
        """Gives the scheduler the tokens of a step, and finishes requests."""
        for row in plan.rows:
            if not row.samples:
                continue
            request_id = row.request_id
            sequence = self._sequences[request_id]
            self.scheduler.sampled(request_id, -1 - request_id)
            if np.isnan(self._firsts[request_id]):
                self._firsts[request_id] = end
            else:
                self._between.append(end - self._lasts[request_id])
            self._lasts[request_id] = end
            if len(sequence.ids) == sequence.max_total:
                self.scheduler.finish(request_id)
                del self._sequences[request_id]

    def result(self, steps: list[tuple[float, float, int, int, list[int]]]) -> Simulation:
        """Returns the times of all requests, and the steps as arrays."""
        arrived = np.array([arrival.time_s for arrival in self._arrivals], np.float64)
        starts, durations, rows, tokens, used = zip(*steps, strict=True) if steps else [()] * 5
        groups = self.scheduler.limits.groups
        counters = self.scheduler.counters
        return Simulation(
            wait_s=self._starts - arrived,
            first_token_s=self._firsts - arrived,
            end_to_end_s=self._lasts - arrived,
            between_tokens_s=np.array(self._between, np.float64),
            step_start_s=np.array(starts, np.float64),
            step_s=np.array(durations, np.float64),
            step_rows=np.array(rows, np.int64),
            step_tokens=np.array(tokens, np.int64),
            pages_used=np.array(used, np.int64).reshape(len(steps), len(groups)),
            pages=tuple(group.pages for group in groups),
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            output_tokens=sum(arrival.output_tokens for arrival in self._arrivals),
            preemptions=counters.preemptions,
        )


def _percentiles(values: np.ndarray) -> Mapping[str, float | None]:
    names = ["mean", *(f"p{p}" for p in PERCENTILES)]
    if not len(values):
        return dict.fromkeys(names)
    numbers = [values.mean(), *np.percentile(values, PERCENTILES)]
    return dict(zip(names, map(float, numbers), strict=True))
