# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The reader of `metrics.jsonl`: one curve for each scalar, over all launches.

Values lie in arrays, so that ten million lines fit into memory.
"""

import itertools
import json
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from dovetail_runs.events import excerpt
from dovetail_runs.metrics.writer import LAST

_NAMED = 20  # damaged lines that are named; the others are counted
_LIMIT = 2.0**1023  # whole numbers from twice this on have no float
_decode = json.JSONDecoder().decode  # json.loads of bytes guesses an encoding for each line
_WORDS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The values of one scalar.

    Attributes:
        steps: i64[n], rising.
        values: f64[n]. NaN where NaN was written.
        times_s: f64[n], Unix time of each line.
    """

    steps: Int64[np.ndarray, " n"]
    values: Float64[np.ndarray, " n"]
    times_s: Float64[np.ndarray, " n"]

    def __repr__(self) -> str:
        return f"Curve({len(self.steps)} values)"

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        return len(self.steps) > 0

    def where(self, kept: Bool[np.ndarray, " n"]) -> "Curve":
        """Returns the values for which `kept` is true."""
        return Curve(steps=self.steps[kept], values=self.values[kept], times_s=self.times_s[kept])

    def last(self) -> tuple[int, float] | None:
        """Returns the last step and its value; None without values."""
        return (int(self.steps[-1]), float(self.values[-1])) if self else None


@dataclass(frozen=True, kw_only=True)
class Lines:
    """All lines of a file, also those replaced by a later launch.

    Attributes:
        steps: i64[n], in the order of the file.
        generations: i64[n], number of the launch.
        times_s: f64[n], Unix time.
        columns: (i64[m] numbers of lines, f64[m] values) of each scalar by name.
    """

    steps: Int64[np.ndarray, " n"]
    generations: Int64[np.ndarray, " n"]
    times_s: Float64[np.ndarray, " n"]
    columns: Mapping[str, tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]]

    def column(self, name: str) -> Float64[np.ndarray, " n"]:
        """Returns a scalar line by line, NaN for lines without it."""
        values = np.full(len(self.steps), np.nan)
        if name in self.columns:
            numbers, own = self.columns[name]
            values[numbers] = own
        return values

    def having(self, name: str) -> Bool[np.ndarray, " n"]:
        """Returns line by line whether a scalar was written, NaN included."""
        having = np.zeros(len(self.steps), bool)
        if name in self.columns:
            having[self.columns[name][0]] = True
        return having

    @cached_property
    def kept(self) -> Bool[np.ndarray, " n"]:
        """Whether a line is part of the run: no later launch has replaced it.

        A launch that reaches a step replaces the lines of earlier ones there. A launch that begins
        after step 0 goes on from what was saved at its first step: there, earlier lines describe
        the same state and stay.
        """
        if not len(self.steps):
            return np.zeros(0, bool)
        order = np.lexsort((np.arange(len(self.steps)), self.steps))
        steps, generations = self.steps[order], self.generations[order]
        first = np.unique(self.generations, return_index=True)
        begun = dict(zip(first[0].tolist(), self.steps[first[1]].tolist(), strict=True))
        begins = np.array([begun[g] for g in first[0].tolist()])
        begin = begins[np.searchsorted(first[0], generations)]
        replaces = np.ones(len(order), bool)  # the lines of the step before it
        same = (steps[1:] == steps[:-1]) & (generations[1:] == generations[:-1])
        continued = (steps[1:] == steps[:-1]) & (begin[1:] == steps[1:]) & (steps[1:] > 0)
        replaces[1:] = ~(same | continued)
        # The place of the last replacement within each step.
        place = np.where(replaces, np.arange(len(order)), 0)
        last = np.flatnonzero(np.r_[steps[1:] != steps[:-1], True])
        sizes = np.diff(np.r_[-1, last])
        cut = np.repeat(np.maximum.accumulate(place)[last], sizes)
        kept = np.zeros(len(order), bool)
        kept[order] = np.arange(len(order)) >= cut
        return kept


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The scalars of a run.

    Attributes:
        lines: All lines that could be read.
        damage: Damaged lines, with file and number; at most 20, then a count. They are left out.
        damaged: Number of damaged lines.
    """

    lines: Lines
    damage: tuple[str, ...] = ()
    damaged: int = 0

    def __repr__(self) -> str:
        damaged = f", {self.damaged} damaged" if self.damaged else ""
        return f"Metrics({len(self)} lines of {', '.join(self.names) or 'nothing'}{damaged})"

    def __len__(self) -> int:
        return len(self.lines.steps)

    @property
    def names(self) -> list[str]:
        """Names of the scalars, in the order in which they first came."""
        return list(self.lines.columns)

    def curve(self, name: str) -> Curve:
        """Returns the values of a scalar, one for each step; empty if the run has no such scalar.

        A step that was written several times has its last value.
        """
        numbers, values = self.lines.columns.get(name, (np.zeros(0, np.int64), np.zeros(0)))
        kept = self.lines.kept[numbers]
        numbers, values = numbers[kept], values[kept]
        order = np.argsort(self.lines.steps[numbers], kind="stable")
        numbers, values = numbers[order], values[order]
        steps = self.lines.steps[numbers]
        last = np.r_[steps[1:] != steps[:-1], True] if len(steps) else np.zeros(0, bool)
        return Curve(
            steps=steps[last], values=values[last], times_s=self.lines.times_s[numbers[last]]
        )

    def updates(self, name: str) -> Curve:
        """Returns the finite values of a scalar without those of skipped steps."""
        curve, skipped = self.curve(name), self.curve("skipped")
        without = np.isin(curve.steps, skipped.steps[skipped.values > 0])
        return curve.where(np.isfinite(curve.values) & ~without)

    def without(self, names: Collection[str]) -> "Metrics":
        """Returns the metrics without the scalars `names`."""
        columns = {n: column for n, column in self.lines.columns.items() if n not in names}
        return replace(self, lines=replace(self.lines, columns=columns))


def read_metrics(path: str | Path) -> Metrics:
    """Reads a file of a launch, or of `dovetail_train.Jsonl`; also while it grows.

    An incomplete last line is left out. Damaged lines are left out and named.

    Args:
        path: The file. A missing one has no lines.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_runs import read_metrics
        >>> line = '{"step": 0, "generation": 0, "time_s": 1.5, "loss": 4.5}'
        >>> _ = Path("metrics.jsonl").write_text(line + "\\n" + "no JSON" + "\\n")
        >>> metrics = read_metrics("metrics.jsonl")
        >>> metrics.curve("loss").last()
        (0, 4.5)
        >>> metrics.damage
        ("metrics.jsonl:2: no line of metrics: 'no JSON'",)
    """
    return Reader(Path(path)).read()


class Reader:
    """Reads a file again and again while it grows: each time only the new lines.

    Args:
        path: The file. A missing one has no lines.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin(0)

    def _begin(self, inode: int) -> None:
        self._inode, self._offset, self._number, self._damaged = inode, 0, 0, 0
        self._written_ns = 0
        self._steps, self._generations, self._times = array("q"), array("q"), array("d")
        # Numbers of lines and their values, row by row, of lines with the same names: one call for
        # each line, where a column for each name would need two for each value.
        self._layouts: dict[tuple[str, ...], tuple[array[int], array[float]]] = {}
        self._damage: list[str] = []
        self._metrics: Metrics | None = None

    def read(self) -> Metrics:
        """Returns the metrics of all complete lines. A file that was replaced is read anew."""
        status = self._path.stat() if self._path.is_file() else None
        inode, size = (status.st_ino, status.st_size) if status else (0, 0)
        written_ns = status.st_mtime_ns if status else 0
        rewritten = size == self._offset and written_ns != self._written_ns
        if inode != self._inode or size < self._offset or rewritten:
            self._begin(inode)
        self._written_ns = written_ns
        if self._metrics is None or size > self._offset:
            before = self._number
            if status:
                with self._path.open("rb") as opened:
                    opened.seek(self._offset)
                    for text in itertools.takewhile(lambda line: line.endswith(b"\n"), opened):
                        self._take(text)
            if self._metrics is None or self._number > before:
                self._metrics = self._made()
        return self._metrics

    def _take(self, text: bytes) -> None:
        self._offset += len(text)
        self._number += 1
        line = _parsed(text)
        if line is None:
            self._damaged += 1
            if self._damaged <= _NAMED:
                place = f"{self._path.name}:{self._number}"
                self._damage.append(f"{place}: no line of metrics: {excerpt(text)}")
            return
        step, generation, time_s, values = line
        number = len(self._steps)
        self._steps.append(step)
        self._generations.append(generation)
        self._times.append(time_s)
        names = tuple(values)
        if names not in self._layouts:
            self._layouts[names] = array("q"), array("d")
        numbers, rows = self._layouts[names]
        numbers.append(number)
        rows.extend(values.values())

    def _made(self) -> Metrics:
        more = self._damaged - _NAMED
        named = [f"{self._path.name}: {more} more damaged lines"] if more > 0 else []
        lines = Lines(
            steps=np.array(self._steps, np.int64),
            generations=np.array(self._generations, np.int64),
            times_s=np.array(self._times, np.float64),
            columns=self._columns(),
        )
        return Metrics(lines=lines, damage=(*self._damage, *named), damaged=self._damaged)

    def _columns(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns numbers of lines and values by name, in the order in which the names came."""
        pieces: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for names, (numbers, rows) in self._layouts.items():
            own = np.array(numbers, np.int64)  # one for all of these names
            table = np.asarray(memoryview(rows)).reshape(len(numbers), len(names))
            for name, column in zip(names, table.T, strict=True):
                pieces.setdefault(name, []).append((own, column.copy()))
        columns = {}
        for name, some in pieces.items():
            numbers, values = some[0]
            if len(some) > 1:
                numbers, values = (np.concatenate(x) for x in zip(*some, strict=True))
                order = np.argsort(numbers, kind="stable")
                numbers, values = numbers[order], values[order]
            columns[name] = numbers, values
        return columns


def _parsed(text: bytes) -> tuple[int, int, float, dict[str, Any]] | None:
    """Returns step, generation, time and the numbers of a line, null as NaN; None if damaged."""
    try:
        line = _decode(text.decode())
        step, generation = line.pop("step"), line.pop("generation")
        time_s = line.pop("time_s", 0.0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    whole = type(step) is type(generation) is int and 0 <= step < LAST and 0 <= generation < LAST
    if not whole or type(time_s) not in (int, float) or not -_LIMIT < time_s < _LIMIT:
        return None
    if set(map(type, line.values())) != {float}:
        for name, value in line.items():
            number = _number(value)
            if number is None:
                return None
            line[name] = number
    return step, generation, time_s, line


def _number(value: Any) -> float | None:
    """Returns a value of a line as a float; None if it is no number."""
    if type(value) is str:
        return _WORDS.get(value)
    if value is None:
        return np.nan
    is_number = type(value) is float or (type(value) is int and -_LIMIT < value < _LIMIT)
    return float(value) if is_number else None
