# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces as events that Perfetto and Chrome load.

Source: the document "Trace Event Format" of the Chromium project.
"""

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
    number of events that were left out.

    Args:
        recording: The trace.
        mask: The spans to write: bool [spans].
    """
    runs, spans = recording.operations, recording.spans
    hosts, devices = len(recording.hosts), int(runs.device.max(initial=0)) + 1
    device = hosts + runs.host * devices + runs.device
    left = int((~mask).sum())
    yield f'{{"displayTimeUnit":"ms","otherData":{{"events left out":{left}}},"traceEvents":[\n'
    lines = [
        *(_process(i, f"host {name}") for i, name in enumerate(recording.hosts)),
        *(
            _process(
                i, f"device {(i - hosts) % devices} of {recording.hosts[(i - hosts) // devices]}"
            )
            for i in np.unique(device).tolist()
        ),
        *_threads(device, runs.lane, runs.lanes),
        *_threads(spans.host[mask], spans.lane[mask], spans.lanes),
    ]
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
    """Returns the place of each run in the labels of instructions, and these labels."""
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
            values = {"scope": instruction.scope, "source": str(module.source(instruction) or "")}
            label["cat"] = instruction.opcode
            label["args"] = {"program": module.name, **values}
        labels.append(json.dumps(label)[1:-1])
    return place.reshape(-1), labels


def _process(pid: int, name: str) -> str:
    args = {"name": name}
    return json.dumps({"ph": "M", "name": "process_name", "pid": pid, "args": args})


def _threads(process: np.ndarray, lane: np.ndarray, lanes: Sequence[str]) -> list[str]:
    pairs = sorted(set(zip(process.tolist(), lane.tolist(), strict=True)))
    event = {"ph": "M", "name": "thread_name"}
    return [
        json.dumps({**event, "pid": pid, "tid": i, "args": {"name": lanes[i]}}) for pid, i in pairs
    ]
