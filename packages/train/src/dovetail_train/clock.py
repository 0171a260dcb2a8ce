# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks: wall time by activity, and the time of a step.

Steps are dispatched ahead of the device, so the time of a call is meaningless. The only honest
clock is the arrival of results: a step's time is the distance to the result before.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

Activity = Literal["init", "compile", "step", "skipped", "data", "draw", "hooks", "save"]


class Clock:
    """Seconds of wall time by activity. Activities do not overlap, so they sum to the wall time.

    init: building or restoring the state. compile: calls that compiled a step, without its run.
    step: the device had work (fetching a batch meanwhile is free and counts here). skipped: the
    same for steps without an update. data: fetching a batch while the device was idle. draw: making
    a batch from the newest state. hooks, save: the loop waited for them. A clock is Stateful: after
    `set_state` it continues a saved account.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._since = now()
        self._activity: Activity = "init"
        self._seconds: dict[str, float] = dict.fromkeys(get_args(Activity), 0.0)

    def enter(self, activity: Activity) -> None:
        """Ends the current activity and begins another."""
        now = self._now()
        self._seconds[self._activity] += now - self._since
        self._activity, self._since = activity, now

    def charge(self, activity: Activity) -> None:
        """Charges the time since the last `enter` or `charge` to an activity that is not
        current.
        """
        now = self._now()
        self._seconds[activity] += now - self._since
        self._since = now

    def move(self, seconds: float, *, to: Activity) -> None:
        """Moves seconds from steps to another activity."""
        self._seconds["step"] -= seconds
        self._seconds[to] += seconds

    def seconds(self) -> dict[str, float]:
        """Returns seconds by activity up to now."""
        self.enter(self._activity)
        return dict(self._seconds)

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
    """Step times from the arrival of results, and rates derived from them."""

    def __init__(
        self, rates: Rates = Rates(), now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._rates, self._now = rates, now
        self._last: float | None = None

    def pause(self) -> None:
        """Announces work other than training (a compilation): the next result has no step time."""
        self._last = None

    def resume(self) -> None:
        """Restarts the clock; the device is idle."""
        self._last = self._now()

    def result(self, *, tokens: float | None, rows: int) -> dict[str, float]:
        """Returns the scalars of a step whose result has just arrived; empty after a pause.

        `tokens_per_s` counts the positions of the batch with mask > 0, not padding; a batch
        without a mask has `rows_per_s`. `mfu` is the share of model FLOPs in the peak (PaLM,
        2204.02311, appendix B); `hfu` includes recomputed FLOPs.
        """
        last, self._last = self._last, self._now()
        if last is None:
            return {}
        step_s = max(self._last - last, 1e-9)  # two results may be read within one clock tick
        unit, amount = ("rows", rows) if tokens is None else ("tokens", tokens)
        scalars = {"step_time_s": step_s, f"{unit}_per_s": amount / step_s}
        rates = self._rates
        if rates.flops is not None and rates.peak_flops is not None:
            scalars["mfu"] = rates.flops / step_s / rates.peak_flops
            if rates.recomputed is not None:
                scalars["hfu"] = scalars["mfu"] * (1 + rates.recomputed / rates.flops)
        return scalars
