# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The writer of `metrics.jsonl`: a line for each step, readable after a kill at any moment."""

import contextlib
import json
import math
import operator
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

HEAD = ("step", "generation", "time_s")  # of each line
LAST = 1 << 62  # no step reaches it
_TAIL = 1 << 16  # bytes of one look for the last line


class Writer:
    """Appends {"step", "generation", "time_s", ...scalars} lines to a file, each flushed.

    The first write begins a new generation, one more than the file's last. An incomplete last line
    is removed first, also one that a failed write left. NaN and infinities are written as the
    strings "nan", "inf" and "-inf", since JSON has no such numbers.

    Args:
        path: The file.
        now: Clock, in Unix time.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        self._file: IO[bytes] | None = None
        self._generation: int | None = None
        self._last: dict[str, int] = {}  # step by name

    def write(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Writes scalars by name.

        Args:
            step: Number of the step, from 0 on.
            scalars: Numbers, or arrays of no dimension.

        Raises:
            TypeError: The step is no whole number, or a value no number.
            ValueError: The step is negative, a scalar falls behind its last step, or it has a name
                that lines use themselves.
        """
        step = checked_step(step)
        numbers = {name: _number(name, value) for name, value in scalars.items()}
        for name in numbers:
            if step < self._last.get(name, 0):
                raise ValueError(
                    f"steps must not fall within a launch, got {name} at step {step} after step "
                    f"{self._last[name]}: count the steps of all epochs, or launch the run again"
                )
        self.append(step, {k: v if math.isfinite(v) else str(v) for k, v in numbers.items()})
        self._last.update(dict.fromkeys(numbers, step))

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes a line of JSON values, behind its head.

        Args:
            step: Number of the step, checked.
            values: Values by name.
        """
        if self._file is None:
            following = begin(self._path)
            self._generation = following if self._generation is None else self._generation
            self._file = self._path.open("ab", buffering=0)  # nothing waits for a later write
        head = {"step": step, "generation": self._generation, "time_s": self._now()}
        line = json.dumps({**head, **values}, allow_nan=False).encode() + b"\n"
        self._append(self._file, line)

    def close(self) -> None:
        """Closes the file. A later write opens it again, in the same generation."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _append(self, file: IO[bytes], line: bytes) -> None:
        """Writes a line. After an error the next write opens the file again."""
        try:
            while line:  # the system takes a part if the disk is nearly full, and then says so
                line = line[file.write(line) :]
        except OSError:
            with contextlib.suppress(OSError):
                self.close()
            raise


def begin(path: Path) -> int:
    """Removes an incomplete last line, and returns the number of the next generation."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        end = file.seek(0, 2)
        tail = b""
        while end > 0:
            begun = max(0, end - _TAIL)
            file.seek(begun)
            tail, end = file.read(end - begun) + tail, begun
            lines = tail.split(b"\n")
            if len(lines) == 1:
                continue  # no line ends here
            if begun + len(tail) - len(lines[-1]) < file.seek(0, 2):
                file.truncate(begun + len(tail) - len(lines[-1]))
            for line in reversed(lines[1 if begun else 0 : -1]):
                if (generation := _generation(line)) is not None:
                    return generation + 1
        if b"\n" not in tail:
            file.truncate(0)
    return 0


def _generation(line: bytes) -> int | None:
    try:
        number = json.loads(line)["generation"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # a damaged line: the reader names it
    return number if type(number) is int and number >= 0 else None


def checked_step(step: Any) -> int:
    """Returns the number of a step. TypeError if it is none, ValueError if it is negative."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(
            f"a step must be a whole number, got {step!r:.100} of type {type(step).__name__}: "
            "count the updates from 0"
        ) from None
    if not 0 <= number < LAST or isinstance(step, bool):
        raise ValueError(f"a step must be a number from 0 to 2**62 - 1, got {step!r}: count from 0")
    return number


def _number(name: str, value: Any) -> float:
    if name in HEAD:
        raise ValueError(
            f"a scalar must not be called {', '.join(HEAD)}, got {name!r}: give it another name"
        )
    if hasattr(value, "detach"):  # a tensor of torch, which warns of a loss that has its graph
        value = value.detach()
    try:
        if not isinstance(value, str | bytes) and not getattr(value, "ndim", 0):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise TypeError(
        f"scalars must be numbers, got {name}={value!r:.100} of type {type(value).__name__}: "
        "write the mean of an array; write_text takes texts, and write_histogram arrays"
    )
