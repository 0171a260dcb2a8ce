# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The account of a run: its wall time by cause."""

from dataclasses import dataclass

import numpy as np

from dovetail_runs.metrics.metrics import Lines


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A process slower than the others, as a trainer has found it.

    Attributes:
        process: Its index.
        activity: Its slowest activity outside of steps. Or "devices", in steps.
        own_s: Its seconds of that in the launch.
        others_s: The median of the others. Of "devices", the seconds that theirs would need.
    """

    process: int
    activity: str
    own_s: float
    others_s: float

    def __str__(self) -> str:
        return (
            f"process {self.process}: {self.own_s:,.1f} s of {self.activity}, "
            f"the others {self.others_s:,.1f} s"
        )


@dataclass(frozen=True, kw_only=True)
class Account:
    """Wall time of a run in seconds, from its first line of metrics to its last.

    Attributes:
        wall_s: All of it, pauses included.
        step_s: Steps of the run itself: their scalars `step_time_s`. Without any, the time
            from one line of a launch to the next.
        skipped_s: Lost to steps without an update: those with a scalar `skipped` above 0.
        repeated_s: Lost to steps undone by a kill and repeated later.
        stalled_s: Between steps, while the devices had no work: the scalars `stall_s`.
        idle_s: Between the last line of a launch and the first of the next.
        clock_back_s: By how much the clock went back from one line to the next. Not in `wall_s`.
        straggler: The process that the others waited for at last, None if none stood out.
    """

    wall_s: float
    step_s: float
    skipped_s: float
    repeated_s: float
    stalled_s: float
    idle_s: float
    clock_back_s: float = 0.0
    straggler: Straggler | None = None

    @property
    def other_s(self) -> float:
        """The rest, such as compiling, saving and evaluating."""
        named = self.step_s + self.skipped_s + self.repeated_s + self.stalled_s + self.idle_s
        return max(0.0, self.wall_s - named)

    @property
    def goodput(self) -> float:
        """Share of the run's own steps in the wall time."""
        return self.step_s / self.wall_s if self.wall_s else 0.0


def account_of(lines: Lines) -> Account | None:
    """Returns the account of the lines of a run; None with fewer than two."""
    if len(lines.steps) < 2:
        return None
    passed = np.diff(lines.times_s)
    changes = np.diff(lines.generations) != 0
    seconds = lines.column("step_time_s")
    # Evaluations and accounts are lines of their own: a step's line has a loss, which may be NaN.
    timed = not np.isnan(seconds).all()
    of_steps = lines.having("loss") if timed else np.ones(len(seconds), bool)
    if not timed:
        seconds = np.r_[0.0, np.where(changes, 0.0, passed.clip(min=0))]
    seconds = np.where(np.isfinite(seconds), seconds, 0.0)
    undone = of_steps & ~_newest(lines, of_steps)
    skipped = (lines.column("skipped") > 0) & ~undone
    stalls = lines.column("stall_s")
    return Account(
        wall_s=float(passed.clip(min=0).sum()),
        step_s=float(seconds[~undone & ~skipped].sum()),
        skipped_s=float(seconds[skipped].sum()),
        repeated_s=float(seconds[undone].sum()),
        stalled_s=float(stalls[np.isfinite(stalls)].sum()),
        idle_s=float(passed[changes].clip(min=0).sum()),
        clock_back_s=float(-passed.clip(max=0).sum()) + 0.0,
        straggler=_straggler(lines),
    )


def _newest(lines: Lines, of_steps: np.ndarray) -> np.ndarray:
    """Returns whether a line is of the last launch that made its step."""
    numbers = np.flatnonzero(of_steps)
    steps, places = np.unique(lines.steps[numbers], return_inverse=True)
    last = np.full(len(steps), -1, np.int64)
    np.maximum.at(last, places, np.arange(len(numbers)))
    newest = np.zeros(len(of_steps), bool)
    generations = lines.generations[numbers]
    newest[numbers] = generations == generations[last][places]
    return newest


def _straggler(lines: Lines) -> Straggler | None:
    """Returns that of the last line with an account."""
    numbers, _ = lines.columns.get("seconds/step", (np.zeros(0, np.int64), None))
    if not len(numbers):
        return None
    at = numbers[-1]
    values = {
        name: float(column[np.searchsorted(own, at)])
        for name, (own, column) in lines.columns.items()
        if name.startswith("straggler")
        and at in own[np.searchsorted(own, [at]).clip(max=len(own) - 1)]
    }
    activities = [n for n in values if n.startswith("straggler/") and n != "straggler/others"]
    named = np.isfinite(values.get("straggler", np.nan))
    if not named or not activities or "straggler/others" not in values:
        return None
    return Straggler(
        process=int(values["straggler"]),
        activity=activities[0].removeprefix("straggler/"),
        own_s=values[activities[0]],
        others_s=values["straggler/others"],
    )
