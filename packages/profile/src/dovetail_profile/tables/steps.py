# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wall time of each step, by activity of devices and host.

A step lasts from the start of its annotation to the start of the next one, since its work is
dispatched ahead; the last one ends with its annotation. Each moment counts once, for the first of
these conditions:

1. compute: a device runs an instruction other than a collective
2. collective: a device runs a collective, exposed
3. compute again: a device is inside a loop or call, between its instructions
4. compile: the thread of the steps compiles, or calls a function with a compilation inside
5. input: that thread is in an annotation named "data", as the trainer and loaders name it
6. dispatch: that thread calls a compiled function, or sends data to a device
7. other: that thread is in another annotation of the program
8. idle

Fetching a batch while a device computes is free, and counts as compute. A row holds the mean over
devices.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from dovetail_profile.table import Table
from dovetail_profile.tables import activity
from dovetail_profile.tables.category import category_of
from dovetail_profile.tables.intervals import NONE, Intervals, before_ps, intervals
from dovetail_profile.tables.work import grouped
from dovetail_profile.trace.operations import union_ps
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.spans import Spans

INPUT = "data"
ENGINE = ("prefill", "decode", "mixed")  # annotations of dovetail_infer, one a step


@dataclasses.dataclass(frozen=True)
class StepRow:
    """A step on one host. The times from `compute_us` to `idle_us` add up to `wall_us`.

    Attributes:
        step: Its number.
        name: Name of its annotation.
        host: The host.
        wall_us: Time from its start to the start of the next one.
        compute_us: A device computed.
        collective_us: A device ran a collective, and nothing else.
        compile_us: The host compiled while the device had no work.
        input_us: The host fetched data, likewise.
        dispatch_us: The host called compiled functions, likewise.
        other_us: The host was in another annotation, likewise.
        idle_us: None of these.
        skew_us: Start of the step after that on the first host to start it. None: one host, or its
            clock is unknown.
    """

    step: int
    name: str
    host: str
    wall_us: float
    compute_us: float
    collective_us: float
    compile_us: float
    input_us: float
    dispatch_us: float
    other_us: float
    idle_us: float
    skew_us: float | None


def steps(recording: Recording) -> Table[StepRow]:
    """Returns the steps, in the order of time, host after host.

    Steps are `jax.profiler.StepTraceAnnotation`s; without any, the steps of dovetail_infer. Of
    nested annotations the inner ones are the steps.
    """
    layers, devices = _host_layers(recording.spans), _device_layers(recording)
    marks = [marks_of(recording.spans, host) for host in range(len(recording.hosts))]
    skews = _skews(recording, marks)
    rows, notes = [], []
    for host, at in enumerate(marks):
        rows += _rows(recording, host, at, layers, devices, skews)
        notes += _notes(recording, host, at)
    return Table(StepRow, tuple(rows), tuple(notes))


def marks_of(spans: Spans, host: int) -> np.ndarray:
    """Returns the indices of the annotations of the steps of a host, ordered in time."""
    at = np.flatnonzero((spans.host == host) & (spans.step >= 0))
    if not len(at):
        at = np.flatnonzero((spans.host == host) & spans.named(*ENGINE) & activity.of_user(spans))
    at = at[np.lexsort((-spans.duration_ps[at], spans.start_ps[at], spans.lane[at]))]
    (start, stop), lane = intervals(spans, at), spans.lane[at]
    around = np.append((stop[:-1] > start[1:]) & (lane[:-1] == lane[1:]), False)
    at = at[~around[: len(at)]]
    return at[np.argsort(spans.start_ps[at], kind="stable")]


def partition(start: np.ndarray, stop: np.ndarray, layers: Sequence[Intervals]) -> np.ndarray:
    """Divides windows of time among layers. Each moment counts for the first layer to cover it.

    Args:
        start: int64 [windows].
        stop: int64 [windows].
        layers: Starts and stops of intervals. They may overlap.

    Returns:
        int64 [layers + 1, windows]; the last row is uncovered time. Columns sum to the lengths of
        the windows.
    """
    covered = NONE
    before, times = np.zeros(len(start), np.int64), []
    for layer in layers:
        covered = union_ps(*map(np.concatenate, zip(covered, layer, strict=True)))
        inside = before_ps(covered, stop) - before_ps(covered, start)
        times.append(inside - before)
        before = inside
    return np.stack([*times, stop - start - before])


def _rows(
    recording: Recording,
    host: int,
    marks: np.ndarray,
    layers: Sequence[np.ndarray],
    devices: Sequence[np.ndarray],
    skews: dict[int, float],
) -> list[StepRow]:
    spans, runs = recording.spans, recording.operations
    if not len(marks):
        return []
    thread = (spans.host == host) & np.isin(spans.lane, spans.lane[marks])
    start = spans.start_ps[marks]
    stop = np.append(start[1:], start[-1] + spans.duration_ps[marks[-1]])
    mine = [intervals(spans, thread & layer) for layer in layers]
    local = runs.host == host
    times = []
    for device in np.unique(runs.device[local]).tolist() or [0]:  # without runs: the host alone
        on = local & (runs.device == device)
        work = [intervals(runs, on & layer) for layer in devices]
        times.append(partition(start, stop, work + mine))
    mean = np.mean(times, axis=0) / 1e6
    numbers = spans.step[marks] if (spans.step[marks] >= 0).all() else np.arange(len(marks))
    rows = []
    for i, mark in enumerate(marks.tolist()):
        work, collective, inside, compiling, data, dispatch, other, idle = mean[:, i].tolist()
        row = StepRow(
            step=int(numbers[i]),
            name=spans.names[spans.code[mark]],
            host=recording.hosts[host],
            wall_us=int(stop[i] - start[i]) / 1e6,
            compute_us=work + inside,
            collective_us=collective,
            compile_us=compiling,
            input_us=data,
            dispatch_us=dispatch,
            other_us=other,
            idle_us=idle,
            skew_us=skews.get(mark),
        )
        rows.append(row)
    return rows


def _host_layers(spans: Spans) -> list[np.ndarray]:
    """Returns masks of the spans: compile, input, dispatch, other."""
    of_user = activity.of_user(spans)
    compiles = activity.compiles(spans) | (of_user & spans.named("compile"))
    other = of_user & (spans.step < 0)
    if not (spans.step >= 0).any():
        other &= ~spans.named(*ENGINE)
    return [compiles, of_user & spans.named(INPUT), activity.calls(spans), other]


def _device_layers(recording: Recording) -> list[np.ndarray]:
    """Returns masks of the runs: work, collectives, and loops and calls around them."""
    runs = recording.operations
    layers = np.zeros((3, len(runs)), bool)
    for (host, program), module in recording.modules.items():
        at = np.flatnonzero((runs.host == host) & (runs.program == program))
        kinds = np.zeros(len(runs.names), np.int64)
        for code in np.unique(runs.code[at]).tolist():
            instruction = module.instructions.get(runs.names[code])
            category = category_of(module, instruction) if instruction else ""
            kinds[code] = {"collective": 1, "control": 2}.get(category, 0)
        layers[kinds[runs.code[at]], at] = True
    layers[0] |= ~layers.any(0)
    return list(layers)


def _skews(recording: Recording, marks: Sequence[np.ndarray]) -> dict[int, float]:
    """Returns microseconds from the first start of a step on any host to each start, by span.

    Empty for one host, or if the clock of one is unknown.
    """
    spans, clocks = recording.spans, [ns for ns in recording.start_ns if ns is not None]
    if len(marks) < 2 or len(clocks) < len(marks):
        return {}
    every = np.concatenate(marks).tolist()
    starts = {m: int(spans.start_ps[m]) + (clocks[spans.host[m]] - clocks[0]) * 1000 for m in every}
    same = grouped(every, lambda m: (int(spans.code[m]), int(spans.step[m]))).values()
    return {m: (starts[m] - min(starts[n] for n in group)) / 1e6 for group in same for m in group}


def _notes(recording: Recording, host: int, marks: np.ndarray) -> Iterator[str]:
    spans, runs, name = recording.spans, recording.operations, recording.hosts[host]
    local = runs.host == host
    if not len(marks):
        yield f"{name} has no steps: annotate them with jax.profiler.StepTraceAnnotation."
        return
    devices = len(np.unique(runs.device[local]))
    if devices > 1:
        yield f"{name} has {devices} devices; the times of a step are their mean."
    if local.any():
        stop = int((runs.start_ps + runs.duration_ps)[local].max())
        late = stop - int(spans.start_ps[marks[-1]] + spans.duration_ps[marks[-1]])
        if late > 0:
            yield f"The devices of {name} worked for {late / 1e6:,.0f} us after its last step."
