# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A part of a recording: some steps of the program."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from dovetail_profile.program.module import Module
from dovetail_profile.trace.compilations import Compilation
from dovetail_profile.trace.events import combinations
from dovetail_profile.trace.operations import Operations, union_ps
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.spans import Spans


class Selection(Recording):
    """All events with their start within some steps of `StepTraceAnnotation`.

    A run of a program belongs, with all its instructions, to the step of its first instruction. A
    step lasts until the annotation of the next one, since work is dispatched ahead. The last ends
    with its annotation.

    Args:
        recording: The whole.
        steps: Numbers of steps.
    """

    def __init__(self, recording: Recording, steps: range) -> None:
        super().__init__(
            recording.spaces, recording.hosts, files=recording._files, notes=recording._notes
        )
        self._whole, self._steps = recording, steps
        hosts = range(len(self.hosts))
        self._windows = [_windows(recording.spans, host, steps) for host in hosts]

    @functools.cached_property
    def operations(self) -> Operations:
        """The runs of instructions on all devices."""
        runs = self._whole.operations
        _, group = combinations(runs.host, runs.device, runs.program, runs.run)
        # Without a number of the run each instruction stands for itself.
        group = np.where(runs.run == -1, np.arange(len(runs)) + len(runs), group)
        first = np.full(2 * len(runs), np.iinfo(np.int64).max)
        np.minimum.at(first, group, runs.start_ps)
        return runs.select(self._mask(runs.host, first[group]))

    @functools.cached_property
    def spans(self) -> Spans:
        """Activities of the threads of the hosts."""
        spans = self._whole.spans
        return spans.select(self._mask(spans.host, spans.start_ps))

    @functools.cached_property
    def compilations(self) -> Mapping[int, Sequence[Compilation]]:
        """Compilations within the steps, by the index of the host."""
        whole = self._whole
        return {
            host: [c for c in rows if self._has(host, start_ps(whole, host, c.start_s))]
            for host, rows in whole.compilations.items()
        }

    @functools.cached_property
    def modules(self) -> Mapping[tuple[int, int], Module]:
        """All programs of the recording."""
        return self._whole.modules

    def _mask(self, host: np.ndarray, start: np.ndarray) -> np.ndarray:
        mask = np.zeros(len(host), bool)
        for i, (first, last) in enumerate(self._windows):
            place = np.searchsorted(first, start, side="right") - 1
            after = start < last[place] if len(last) else mask
            mask |= (host == i) & (place >= 0) & after
        return mask

    def _has(self, host: int, start: int) -> bool:
        return bool(self._mask(np.array([host]), np.array([start]))[0])


def start_ps(recording: Recording, host: int, at_s: float) -> int:
    """Returns a time after the start of a host's trace.

    Args:
        recording: The trace.
        host: Index of the host.
        at_s: Seconds after the epoch.
    """
    return round((at_s * 1e9 - (recording.start_ns[host] or 0)) * 1e3)


def _windows(spans: Spans, host: int, steps: range) -> tuple[np.ndarray, np.ndarray]:
    """Returns the union of the steps: starts and stops, int64 [windows]."""
    marks = spans.select((spans.host == host) & (spans.step >= 0))
    order = np.argsort(marks.start_ps, kind="stable")
    start = marks.start_ps[order]
    following = np.append(start, 0)[1:]
    stop = np.maximum(start + marks.duration_ps[order], following)
    mine = np.array([step in steps for step in marks.step[order].tolist()], bool)
    return union_ps(start[mine], stop[mine])
