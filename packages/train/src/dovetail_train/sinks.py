# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where scalars go."""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO


class Sink(Protocol):
    """Takes the scalars of a step; may be called more than once for one step."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None: ...


class Console:
    """One line for every `every`-th step, and for each evaluation.

    Rates are over the steps since the last line; everything else is that step's own.
    """

    def __init__(self, *, every: int = 50, stream: TextIO | None = None) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got every={every}; write Console(every=1)")
        self._every, self._stream = every, stream
        self._seconds = self._amount = 0.0

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        shown = dict(scalars)
        if "loss" in scalars:
            unit = "tokens" if "tokens_per_s" in scalars else "rows"
            seconds = shown.pop("step_time_s", 0.0)
            self._seconds += seconds
            self._amount += seconds * shown.pop(f"{unit}_per_s", 0.0)
            if step % self._every:
                return
            if self._seconds:
                shown[f"{unit}_per_s"] = self._amount / self._seconds
            self._seconds = self._amount = 0.0
        stream = sys.stdout if self._stream is None else self._stream
        stream.write(f"step {step}  " + "  ".join(f"{k} {v:.4g}" for k, v in shown.items()) + "\n")
        stream.flush()


class Jsonl:
    """Appends {"step", "generation", "time_s", ...scalars} lines to a file, each flushed.

    The file belongs to one run. The first write of an object begins a new generation: one more
    than the file's last. A line that a kill tore is cut off first. time_s is Unix time; a number
    that JSON has no word for (NaN, infinity) is written as null.
    """

    def __init__(self, path: str | Path, *, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = Path(path), now
        self._file: TextIO | None = None
        self._generation = 0

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._file is None:
            self._file = self._open()
        numbers = {k: float(v) if math.isfinite(v) else None for k, v in scalars.items()}
        head = {"step": step, "generation": self._generation, "time_s": self._now()}
        self._file.write(json.dumps(head | numbers, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file; the next write opens it again as a new generation."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            data = self._path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                with self._path.open("r+b") as file:
                    file.truncate(whole)
            lines = _parse(data[:whole], self._path)
            self._generation = max((line["generation"] + 1 for line in lines), default=0)
        return self._path.open("a", encoding="utf-8")


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """One dict per step, in order: the lines of the last generation that reached that step, merged.

    A last line without its newline was torn and is left out. Raises ValueError on any other line
    that is not one of `Jsonl`'s.
    """
    data = Path(path).read_bytes()
    steps: dict[int, dict[str, Any]] = {}
    for line in _parse(data[: data.rfind(b"\n") + 1], Path(path)):
        seen = steps.get(line["step"], line)
        if seen["generation"] == line["generation"]:
            steps[line["step"]] = seen | line
        elif seen["generation"] < line["generation"]:
            steps[line["step"]] = line
    return [steps[step] for step in sorted(steps)]


def _parse(data: bytes, path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or not {"step", "generation"} <= line.keys():
            raise ValueError(
                f"each line must be a JSON object with step and generation, got "
                f"{path}:{number}: {text[:60]!r}; remove that line or pass another path"
            )
        lines.append(line)
    return lines
