# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings made by hand: compiled programs with runs, steps and annotations of known times."""

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail_profile.program.module import Module
from dovetail_profile.trace.operations import Operations
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.spans import Spans

PS = 1_000_000  # in 1 us


def recorded(
    programs: Mapping[int, Module],
    runs: Sequence[tuple[int, str, int, int]],
    spans: Sequence[tuple[str, int, int, int]] = (),
) -> Recording:
    """Returns a recording of one host with one device and one thread.

    Args:
        programs: Programs by number.
        runs: Program, instruction, start and duration in us.
        spans: Name, number of the step or -1, start and duration in us.
    """
    recording, zeros = Recording([], ["host"]), np.zeros(len(runs), np.int64)
    names = tuple(dict.fromkeys(name for _, name, _, _ in runs))
    recording.operations = Operations(
        host=zeros,
        device=zeros,
        lane=zeros,
        start_ps=np.array([start * PS for _, _, start, _ in runs], np.int64),
        duration_ps=np.array([us * PS for _, _, _, us in runs], np.int64),
        program=np.array([program for program, _, _, _ in runs], np.int64),
        run=zeros,
        code=np.array([names.index(name) for _, name, _, _ in runs], np.int64),
        names=names,
        lanes=("worker",),
    )
    recording.modules = {(0, number): module for number, module in programs.items()}
    zeros, names = np.zeros(len(spans), np.int64), tuple(dict.fromkeys(s[0] for s in spans))
    recording.spans = Spans(
        *(zeros, zeros),
        start_ps=np.array([start * PS for _, _, start, _ in spans], np.int64),
        duration_ps=np.array([us * PS for _, _, _, us in spans], np.int64),
        step=np.array([step for _, step, _, _ in spans], np.int64),
        code=np.array([names.index(name) for name, _, _, _ in spans], np.int64),
        names=names,
        lanes=("main",),
    )
    return recording
