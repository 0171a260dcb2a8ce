# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the time of devices went: by instruction, line of source, module path, or category."""

import dataclasses

import numpy as np

from dovetail_profile.table import Table
from dovetail_profile.trace.recording import Recording


@dataclasses.dataclass(frozen=True)
class OpRow:
    """Time of one thing.

    Attributes:
        name: The instruction, line, scope or category.
        opcode: As in HLO's text. Of several instructions the one with the most time.
        source: File and line. Of several instructions that with the most time.
        scope: The module path, likewise.
        program: The program, likewise.
        calls: Number of runs.
        self_us: Time of all runs without what they contain, on all devices.
        share: Of the time of all rows.
        flops: Floating-point operations of all runs; None if an instruction has no rule.
        bytes: Bytes that all runs read and write; None likewise.
    """

    name: str
    opcode: str
    source: str
    scope: str
    program: str
    calls: int
    self_us: float
    share: float
    flops: float | None
    bytes: float | None


def ops(recording: Recording, by: str) -> Table[OpRow]:
    """A draft."""
    runs = recording.operations
    key = runs.program * len(runs.names) + runs.code
    keys, place, calls = np.unique(key, return_inverse=True, return_counts=True)
    times = np.bincount(place, weights=runs.self_ps, minlength=len(keys)) / 1e6
    rows = []
    for k, n, t in zip(keys.tolist(), calls.tolist(), times.tolist(), strict=True):
        program, code = divmod(k, len(runs.names))
        module = recording.modules.get((0, program))
        instruction = module.instructions.get(runs.names[code]) if module else None
        if module is None or instruction is None:
            continue
        frame = module.source(instruction)
        rows.append(
            OpRow(
                runs.names[code],
                instruction.opcode,
                str(frame or ""),
                instruction.scope,
                module.name,
                n,
                t,
                t / times.sum(),
                None,
                None,
            )
        )
    return Table(OpRow, tuple(sorted(rows, key=lambda row: -row.self_us)))
