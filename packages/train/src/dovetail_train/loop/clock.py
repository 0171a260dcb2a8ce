# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks: wall time by activity, and the time of a step.

Steps are dispatched ahead of the devices, so the time of a call is meaningless. A step's time is
the distance between two completions, as `Completions` takes them. If the step was dispatched after
the completion before, the devices had no work in between: that part of the distance is a stall.

The main thread reads results late and in bunches: after it was busy for five seconds, several
results are ready at once, and the distances between its reads say nothing about the devices. A
thread of its own blocks on each result in turn and takes the time.

That thread needs the interpreter lock. While another thread holds it (at most 5 ms in Python code,
longer in an extension), a time is late: one step seems longer and the next shorter. Results that
were complete before the thread looked have no time of their own; they share the one taken.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import jax

_log = logging.getLogger(__name__)
# A step that is not complete by then may never be: the other processes of its mesh are gone.
_CLOSE_S = 5.0

Activity = Literal["init", "compile", "step", "skipped", "data", "stall", "draw", "hooks", "save"]


@runtime_checkable
class ActivitySink(Protocol):
    """A sink that is told of the activities before the first step.

    The other processes wait for one that stays behind in them.
    """

    def begin_activity(self, activity: str) -> None: ...


class Announcer:
    """Tells the sinks that take them of activities, each once; of "init" when it is made.

    Args:
        sinks: Sinks of a run.
    """

    def __init__(self, sinks: Sequence[Any]) -> None:
        self._sinks = [sink for sink in sinks if isinstance(sink, ActivitySink)]
        self._begun: set[str] = set()
        self.begin("init")

    def begin(self, activity: str) -> None:
        """Begins an activity, unless it has begun before."""
        if activity in self._begun:
            return
        self._begun.add(activity)
        for sink in self._sinks:
            sink.begin_activity(activity)

    def before(self, activity: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns `work` that begins an activity first."""

        def run(value: Any) -> Any:
            self.begin(activity)
            return work(value)

        return run


@runtime_checkable
class Pending(Protocol):
    """A result on its way, such as a `jax.Array`."""

    def is_ready(self) -> bool: ...
    def block_until_ready(self) -> Any: ...


class Completion(NamedTuple):
    """The time of a completed result.

    Attributes:
        at_s: Time at which it was complete, of the clock of `Completions`.
        left: Results with this time, from this one on: 1 unless several were complete at once.
    """

    at_s: float
    left: int


class Completions:
    """Completion times in the order of dispatch, taken by a thread from the first `add` on.

    Args:
        now: Clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._added, self._closed = 0, False
        self._newest = 0, float("-inf")  # number of completed results, time of the last
        self._pending: SimpleQueue[Pending | None] = SimpleQueue()
        self._taken: SimpleQueue[Completion] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, result: Pending) -> None:
        """Announces a dispatched result."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="dovetail-completions", daemon=True
            )
            self._thread.start()
        self._added += 1
        self._pending.put(result)

    def has_next(self) -> bool:
        """Tests whether `next` would return at once."""
        return not self._taken.empty()

    def next(self) -> Completion:
        """Returns the completion of the oldest added result not yet returned; waits for it."""
        return self._taken.get()

    def idle_since(self) -> float | None:
        """Returns the time since when no added result is pending; None while one is."""
        count, at_s = self._newest
        return at_s if count == self._added else None

    def close(self, *, wait: bool = True) -> None:
        """Ends the thread. Waits for the result that it is blocked on, 5 s at most; no other.

        A thread that is left behind ends with its result, or with the process.

        Args:
            wait: False leaves the thread behind at once.
        """
        self._closed = True
        if self._thread is not None:
            self._pending.put(None)
            if wait:
                self._thread.join(_CLOSE_S)
            if wait and self._thread.is_alive():
                _log.warning("a step is still on its way after %s s; its result is lost", _CLOSE_S)
            self._thread = None

    def _run(self) -> None:
        count, result = 0, self._pending.get()
        while result is not None and not self._closed:
            _wait(result)
            together, result = 1, None
            while not self._pending.empty():  # no other thread takes from it
                result = self._pending.get()
                if result is None or not _is_complete(result):
                    break
                together, result = together + 1, None
            count, at_s = count + together, self._now()
            self._newest = count, at_s
            for left in range(together, 0, -1):
                self._taken.put(Completion(at_s, left))
            if result is None and not self._closed:
                result = self._pending.get()


# A failed step is complete. Reading its metrics raises its error, in the main thread.


def _wait(result: Pending) -> None:
    try:
        result.block_until_ready()
    except Exception:
        return


def _is_complete(result: Pending) -> bool:
    try:
        return result.is_ready()
    except Exception:
        return True


class Clock:
    """Seconds of wall time by activity. Activities do not overlap, so they sum to the wall time.

    init: building or restoring the state. compile: calls that compiled a step, without its run.
    step: the devices had work (fetching a batch meanwhile is free and counts here). skipped: the
    same for steps without an update. data: fetching a batch while the devices were idle. stall: the
    devices were idle for another reason, such as a slow sink. draw: making a batch from the newest
    state. hooks, save: the loop waited for them. A clock is Stateful: after `set_state` it
    continues a saved account.

    In a trace of `jax.profiler`, each activity that is entered is a `TraceAnnotation` of its name.
    A step has its own annotation, and stalls and skips are known only afterwards.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._since = now()
        self._activity: Activity = "init"
        self._seconds: dict[str, float] = dict.fromkeys(get_args(Activity), 0.0)
        self._annotation: jax.profiler.TraceAnnotation | None = None
        self._annotate("init")

    def enter(self, activity: Activity) -> None:
        """Ends the current activity and begins another."""
        self._tick()
        if activity != self._activity:
            self._annotate(activity)
        self._activity = activity

    def _tick(self) -> None:
        now = self._now()
        self._seconds[self._activity] += now - self._since
        self._since = now

    def _annotate(self, activity: Activity | None) -> None:
        """Ends the annotation of the current activity and begins that of another."""
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
        named = activity not in (None, "step")
        self._annotation = jax.profiler.TraceAnnotation(activity) if named else None
        if self._annotation is not None:
            self._annotation.__enter__()

    def charge(self, activity: Activity, *, since: float | None) -> None:
        """Charges the time from `since` on to an activity that is not current.

        Earlier time, and all of it if `since` is None, belongs to the current activity. Time that
        was charged already does not move.

        Args:
            activity: The activity to charge.
            since: Time on this clock.
        """
        now = self._now()
        start = now if since is None else min(max(since, self._since), now)
        self._seconds[self._activity] += start - self._since
        self._seconds[activity] += now - start
        self._since = now

    def move(self, seconds: float, *, to: Activity) -> None:
        """Moves seconds from steps to another activity."""
        self._seconds["step"] -= seconds
        self._seconds[to] += seconds

    def seconds(self) -> dict[str, float]:
        """Returns seconds by activity up to now."""
        self._tick()
        return dict(self._seconds)

    def end(self) -> dict[str, float]:
        """Ends the annotation of the last activity. Returns seconds by activity up to now."""
        self._annotate(None)
        return self.seconds()

    def goodput(self) -> float:
        """Returns the share of the wall time in steps."""
        seconds = self.seconds()
        return seconds["step"] / max(sum(seconds.values()), 1e-9)  # a clock may not have ticked yet

    def get_state(self) -> dict[str, Any]:
        return self.seconds()

    def set_state(self, state: dict[str, Any]) -> None:
        for activity, seconds in state.items():
            self._seconds[activity] += seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """FLOPs of a step and of the devices. None: unknown.

    Attributes:
        flops: Model FLOPs of a step over the whole batch.
        recomputed: FLOPs computed again, on top of `flops`.
        peak_flops: FLOP/s of all devices at their peak.
    """

    flops: float | None = None
    recomputed: float | None = None
    peak_flops: float | None = None


class Throughput:
    """Times of steps and stalls from completions, and rates derived from them.

    Args:
        rates: FLOPs, for MFU.
        now: Clock, in seconds; that of the completions.
    """

    def __init__(
        self, rates: Rates = Rates(), now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._rates, self._now = rates, now
        self._last: float | None = None

    def pause(self) -> None:
        """Announces work other than training (a compilation): the next result has no step time."""
        self._last = None

    def resume(self) -> None:
        """Restarts the clock; the devices are idle."""
        self._last = self._now()

    def result(
        self, completion: Completion, *, sent_s: float, tokens: float | None, rows: int
    ) -> dict[str, float]:
        """Returns the scalars of a completed step; empty after a pause.

        `step_time_s` is the time from the completion of the step before to that of this one,
        without `stall_s`: the time before the dispatch in which the devices had no work. Both
        together sum to the wall time. `tokens_per_s` is tokens over `step_time_s`. It counts the
        positions of the batch with mask > 0, not padding; a batch without a mask has `rows_per_s`.
        `mfu` is the share of model FLOPs in the peak (PaLM, 2204.02311, appendix B); `hfu`
        includes recomputed FLOPs. Steps that were complete at once share their time equally.

        Args:
            completion: Completion of the step.
            sent_s: Time before its dispatch.
            tokens: Tokens of the batch, or None.
            rows: Rows of the batch.
        """
        last, at_s = self._last, completion.at_s
        if last is None:
            # Steps that were complete together with the first have its time.
            self._last = at_s
            return {}
        begun = max(last, min(sent_s, at_s))
        step_s = max(at_s - begun, 0.0) / completion.left
        self._last = begun + step_s
        scalars = {"step_time_s": step_s, "stall_s": begun - last}
        return scalars | self._rates_of(step_s, tokens=tokens, rows=rows)

    def _rates_of(self, step_s: float, *, tokens: float | None, rows: int) -> dict[str, float]:
        """Returns the rates of a step; empty if the clock did not tick during it."""
        if not step_s:
            return {}
        unit, amount = ("rows", rows) if tokens is None else ("tokens", tokens)
        scalars = {f"{unit}_per_s": amount / step_s}
        rates = self._rates
        if rates.flops is not None and rates.peak_flops is not None:
            scalars["mfu"] = rates.flops / step_s / rates.peak_flops
            if rates.recomputed is not None:
                scalars["hfu"] = scalars["mfu"] * (1 + rates.recomputed / rates.flops)
        return scalars
