# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Curves from a run's JSONL, smoothed and thinned for drawing."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from dovetail_train.logs.records import read_jsonl

# Of these no curve is drawn: they say where a line is from.
_HEAD = ("step", "generation", "time_s")


@dataclasses.dataclass(frozen=True)
class Curve:
    """Steps i64[n], ascending, and values f64[n] of one scalar; NaN for non-finite values."""

    steps: Int64[np.ndarray, " n"]
    values: Float64[np.ndarray, " n"]

    def finite(self) -> Float64[np.ndarray, " m"]:
        return self.values[np.isfinite(self.values)]

    def smoothed(self, reach: int) -> "Curve":
        """Returns means of the finite values within `reach` places on both sides; gaps stay.

        Towards the ends both sides shrink alike: a mean of past values would lag behind a falling
        curve, and unequal sides would bend its ends.
        """
        count = len(self.values)
        finite = np.isfinite(self.values)
        sums = np.concatenate([[0.0], np.cumsum(np.where(finite, self.values, 0.0))])
        counts = np.concatenate([[0], np.cumsum(finite)])
        at = np.arange(count)
        side = np.minimum(np.minimum(at, count - 1 - at), reach)
        low, high = at - side, at + side + 1
        values = np.full(count, np.nan)
        values[finite] = ((sums[high] - sums[low])[finite]) / (counts[high] - counts[low])[finite]
        return Curve(self.steps, values)

    def medians(self, reach: int, *, most: int) -> "Curve":
        """Returns medians of the finite values within `reach` places on both sides; gaps stay.

        Robust against a few steps with a wrong or extreme value. Ends as in `smoothed`.

        Args:
            reach: Places on each side.
            most: Largest number of points, evenly spaced.
        """
        count = len(self.values)
        at = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
        side = np.minimum(np.minimum(at, count - 1 - at), reach)
        windows = [self.values[i - s : i + s + 1] for i, s in zip(at, side, strict=True)]
        values = np.full(len(at), np.nan)
        for place in np.flatnonzero(np.isfinite(self.values[at])):
            window = windows[place]
            values[place] = np.median(window[np.isfinite(window)])
        return Curve(self.steps[at], values)

    def thinned(self, most: int) -> "Curve":
        """Returns about `most` points: the lowest and the highest of each stretch, in order.

        The first and the last stay. A stretch without a finite value stays a gap.
        """
        count = len(self.steps)
        if count <= most:
            return self
        kept = {0, count - 1}
        for stretch in np.array_split(np.arange(count), most // 2):
            values = self.values[stretch]
            if not np.isfinite(values).any():
                kept.add(int(stretch[0]))
                continue
            kept |= {int(stretch[np.nanargmin(values)]), int(stretch[np.nanargmax(values)])}
        index = np.asarray(sorted(kept))
        return Curve(self.steps[index], self.values[index])


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """The log of one run.

    Attributes:
        label: Display name.
        lines: Result of `read_jsonl`; a resumed run has several generations.
        resumes: First steps of later generations.
        skipped: Steps without an update.
        stalled: Steps for which the devices waited longer than they worked on them.
    """

    label: str
    lines: Sequence[Mapping[str, Any]]
    resumes: Sequence[int]
    skipped: Sequence[int]
    stalled: Sequence[int]

    def names(self) -> list[str]:
        """Returns the names of all scalars, in the order of their first line."""
        names = dict.fromkeys(name for line in self.lines for name in line)
        return [name for name in names if name not in _HEAD]

    def curve(self, name: str) -> Curve:
        """Returns the curve of a scalar, with gaps at skipped steps.

        An evaluation at a skipped step stays: it is of the unchanged state.
        """
        lines = [line for line in self.lines if name in line]
        gone = set() if name.startswith("eval/") else set(self.skipped)
        values = [
            np.nan if line[name] is None or line["step"] in gone else float(line[name])
            for line in lines
        ]
        return Curve(
            np.array([line["step"] for line in lines], np.int64), np.array(values, np.float64)
        )

    def last(self, name: str) -> float | None:
        """Returns the last finite value."""
        values = self.curve(name).finite()
        return float(values[-1]) if len(values) else None


def read_history(label: str, path: str | Path, leave_out: Collection[str] = ()) -> History:
    """Reads a log.

    Args:
        label: Display name.
        path: File of `Jsonl`.
        leave_out: Names of scalars that the history does not have.

    Raises:
        ValueError: The file has no step.
    """
    lines = [{n: v for n, v in line.items() if n not in leave_out} for line in read_jsonl(path)]
    if not lines:
        raise ValueError(
            f"a run must have at least one step, got none in {label!r} ({path}); "
            f"leave that run out until it has begun"
        )
    begun: dict[int, int] = {}
    for line in lines:
        begun.setdefault(line["generation"], line["step"])
    first = min(begun)
    return History(
        label=label,
        lines=lines,
        resumes=sorted({step for generation, step in begun.items() if generation != first}),
        skipped=[line["step"] for line in lines if line.get("skipped")],
        stalled=[
            line["step"]
            for line in lines
            if (line.get("stall_s") or 0.0) > (line.get("step_time_s") or 0.0)
        ],
    )
