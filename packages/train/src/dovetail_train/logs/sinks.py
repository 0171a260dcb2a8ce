# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sinks: destinations of scalars."""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from dovetail_train import _elsewhere
from dovetail_train.logs.records import parse


@runtime_checkable
class Sink(Protocol):
    """A destination of scalars. `write` may be called more than once for one step.

    Of several processes, process 0 alone writes: each step is one line of one file. A sink with an
    attribute `everywhere = True` is written to by every process, for example to report progress.
    `close` is called on every process. So is `begin_activity(activity)`, if a sink has it, for what
    comes before the first step: "init", "restore", "data", "place", "compile" and "step".
    """

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Takes scalars by name: of step `step`, of a hook after it, or seconds by activity."""
        ...


_RATES = ("tokens_per_s", "rows_per_s", "mfu", "hfu")


@_elsewhere.console
class Console:
    """Prints a line for every `every`-th step, for the last one, and for each evaluation.

    Rates are totals over the steps since the last line, such as tokens over seconds, with the
    stalls among the seconds; `stall_s` is the sum of these. All other scalars are those of the
    step.
    """

    def __init__(self, *, every: int = 50) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got every={every}; write Console(every=1)")
        self._every = every
        self._last: tuple[int, dict[str, float]] | None = None  # of a step without a line
        self._begin()

    def _begin(self) -> None:
        self._seconds = self._stalls = 0.0
        self._amounts = dict.fromkeys(_RATES, 0.0)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        shown = dict(scalars)
        if "loss" not in scalars:
            self._print(step, shown)
            return
        seconds, stall = shown.pop("step_time_s", 0.0), shown.pop("stall_s", 0.0)
        self._seconds, self._stalls = self._seconds + seconds, self._stalls + stall
        for name in _RATES:
            self._amounts[name] += seconds * shown.pop(name, 0.0)
        self._last = step, shown
        if step % self._every == 0:
            self._print_step()

    def close(self) -> None:
        """Prints the last step of a run."""
        if self._last is not None:
            self._print_step()

    def _print_step(self) -> None:
        assert self._last is not None
        (step, shown), self._last = self._last, None
        rates = {name: amount for name, amount in self._amounts.items() if amount}
        shown |= {name: x / (self._seconds + self._stalls) for name, x in rates.items()}
        if self._stalls:
            shown["stall_s"] = self._stalls
        self._print(step, shown)
        self._begin()

    def _print(self, step: int, shown: Mapping[str, float]) -> None:
        line = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
        sys.stdout.write(f"step {step}  {line}\n")
        sys.stdout.flush()


@_elsewhere.call
class Jsonl:
    """Appends {"step", "generation", "time_s", ...scalars} lines to a file, each flushed.

    The file belongs to one run. The first write of an object begins a new generation, one more than
    the file's last. An incomplete last line is removed first. time_s is Unix time. NaN and infinity
    are written as null.

    Args:
        path: The file.
        now: Clock.
    """

    def __init__(self, path: str | Path, *, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = Path(path), now
        self._generation: int | None = None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._generation is None:
            self._generation = self._begin()
        numbers = {k: float(v) if math.isfinite(v) else None for k, v in scalars.items()}
        head = {"step": step, "generation": self._generation, "time_s": self._now()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(head | numbers, allow_nan=False) + "\n")

    def _begin(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            return 0
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with self._path.open("r+b") as file:
                file.truncate(whole)
        return max((line["generation"] + 1 for line in parse(data[:whole], self._path)), default=0)
