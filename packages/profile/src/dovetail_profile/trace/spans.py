# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Activities of threads of a host: annotations of a program, and calls of JAX."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from dovetail_profile.trace.space import Line


@dataclasses.dataclass(frozen=True)
class Spans:
    """Events of a host that are no runs of instructions, one entry for each.

    Attributes:
        host: int64 [spans], the index of the host.
        lane: int64 [spans], the place of the thread in `lanes`.
        start_ps: int64 [spans], after the start of the trace of the host.
        duration_ps: int64 [spans].
        step: int64 [spans], the number of the step that a `StepTraceAnnotation` names; -1: none.
        code: int64 [spans], the place of the name in `names`.
        names: The different names.
        lanes: Names of threads.
    """

    host: np.ndarray
    lane: np.ndarray
    start_ps: np.ndarray
    duration_ps: np.ndarray
    step: np.ndarray
    code: np.ndarray
    names: tuple[str, ...]
    lanes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ps)

    def named(self, *names: str) -> np.ndarray:
        """Returns a mask of the spans with one of some names: bool [spans]."""
        codes = [i for i, name in enumerate(self.names) if name in names]
        return np.isin(self.code, codes)

    def select(self, mask: np.ndarray) -> "Spans":
        """Returns the spans of a mask: bool [spans]."""
        columns = ("host", "lane", "start_ps", "duration_ps", "step", "code")
        return dataclasses.replace(self, **{name: getattr(self, name)[mask] for name in columns})


def spans_of(lines: Sequence[tuple[int, Line]]) -> Spans:
    """Returns the spans of lines, each with the index of its host."""
    names: dict[str, int] = {}
    columns: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(6)]
    for lane, (host, line) in enumerate(lines):
        keep = np.ones(len(line), bool)
        keep[line.stats("hlo_op").owner] = False
        at = np.flatnonzero(keep)
        codes = np.array([names.setdefault(n, len(names)) for n in line.names], np.int64)
        step = line.stats("step_num").of_each(len(line))
        values = (
            np.full(len(at), host),
            np.full(len(at), lane),
            line.start_ps[at],
            line.duration_ps[at],
            step[at],
            codes[line.code[at]] if len(codes) else at,
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    host, lane, start, duration, step, code = map(np.concatenate, columns)
    lanes = tuple(line.name for _, line in lines)
    return Spans(host, lane, start, duration, step, code, tuple(names), lanes)
