# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces as events for Perfetto and Chrome. Source: "Trace Event Format", the Chromium project."""

import json
from collections.abc import Iterator, Sequence

import numpy as np

from dovetail_profile.trace.recording import Recording

_PYTHON = "$"  # names of calls of Python functions begin with it
_CHUNK = 20_000  # events in a piece of text


def kept(recording: Recording, most: int) -> np.ndarray:
    """Returns a mask of the spans to write: bool [spans].

    All operations and annotations are written, and the longest calls of Python functions.

    Args:
        recording: The trace.
        most: Events to write, unless operations and annotations are more.
    """
    spans = recording.spans
    codes = [i for i, name in enumerate(spans.names) if name.startswith(_PYTHON)]
    calls = np.flatnonzero(np.isin(spans.code, codes))
    room = max(0, most - len(recording.operations) - (len(spans) - len(calls)))
    mask = np.ones(len(spans), bool)
    mask[calls[np.argsort(-spans.duration_ps[calls], kind="stable")[room:]]] = False
    return mask


def events(recording: Recording, mask: np.ndarray) -> Iterator[str]:
    """Yields the JSON of a trace, in pieces.

    A host is a process with its threads, and each of its devices another one. `otherData` has the
    number of spans left out.

    Args:
        recording: The trace.
        mask: The spans to write: bool [spans].
    """
    runs, spans = recording.operations, recording.spans
    hosts, devices = len(recording.hosts), int(runs.device.max(initial=0)) + 1
    device = hosts + runs.host * devices + runs.device
    left = int((~mask).sum())
    yield f'{{"displayTimeUnit":"ms","otherData":{{"events left out":{left}}},"traceEvents":[\n'
    names = [f"host {name}" for name in recording.hosts]
    names += [f"device {i} of {name}" for name in recording.hosts for i in range(devices)]
    processes = [*range(hosts), *np.unique(device).tolist()]
    lines = [_name("process_name", names[pid], pid=pid) for pid in processes]
    for process, lane, lanes in (
        (device, runs.lane, runs.lanes),
        (spans.host[mask], spans.lane[mask], spans.lanes),
    ):
        threads = sorted(set(zip(process.tolist(), lane.tolist(), strict=True)))
        lines += [_name("thread_name", lanes[tid], pid=pid, tid=tid) for pid, tid in threads]
    yield ",\n".join(lines)
    known = [start for start in recording.start_ns if start is not None]
    shifts = [1000 * (start - min(known)) if start else 0 for start in recording.start_ns]
    shift = np.array(shifts, np.int64)
    key, labels = _operations(recording)
    start = runs.start_ps + shift[runs.host]
    yield from _written(labels, key, device, runs.lane, start, runs.duration_ps)
    texts = [f'"name":{json.dumps(name)}' for name in spans.names]
    start = spans.start_ps + shift[spans.host]
    columns = (spans.code, spans.host, spans.lane, start, spans.duration_ps)
    yield from _written(texts, *(column[mask] for column in columns))
    yield "\n]}\n"


def _written(labels: Sequence[str], *columns: np.ndarray) -> Iterator[str]:
    """Yields events: their labels, processes, threads, starts and durations."""
    for at in range(0, len(columns[0]), _CHUNK):
        code, process, thread, start, duration = (c[at : at + _CHUNK].tolist() for c in columns)
        for k, pid, tid, ts, dur in zip(code, process, thread, start, duration, strict=True):
            yield (
                f',\n{{"ph":"X",{labels[k]},"pid":{pid},"tid":{tid},'
                f'"ts":{ts / 1e6:.3f},"dur":{dur / 1e6:.3f}}}'
            )


def _operations(recording: Recording) -> tuple[np.ndarray, list[str]]:
    """Returns the index of each run in the labels of instructions, and these labels."""
    runs = recording.operations
    keys, place = np.unique(
        np.stack([runs.host, runs.program, runs.code]), axis=1, return_inverse=True
    )
    labels = []
    for host, program, code in keys.T.tolist():
        name = runs.names[code]
        module = recording.modules.get((host, program))
        instruction = module.instructions.get(name) if module else None
        label: dict[str, object] = {"name": name}
        if module and instruction:
            source = str(module.source(instruction) or "")
            values = {"program": module.name, "scope": instruction.scope, "source": source}
            label |= {"cat": instruction.opcode, "args": values}
        labels.append(json.dumps(label)[1:-1])
    return place.reshape(-1), labels


def _name(kind: str, name: str, **place: int) -> str:
    return json.dumps({"ph": "M", "name": kind, **place, "args": {"name": name}})
