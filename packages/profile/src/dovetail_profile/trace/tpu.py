# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Work of TPUs: the line "XLA Ops" of a plane.

The plane `/device:TPU:0` has a line of instructions, nested as `while` and its body are, and one of
programs, "XLA Modules". The kind of an event of an instruction has the text of its HLO as its name,
and values that all its runs share, among them the program. Other lines tell the same time again, by
step or by name scope, or what goes on beside it: asynchronous copies on "Async XLA Ops".

The names of lines and values are from XProf's sources (`xplane_to_op_metrics_db.cc`,
`op_metrics_db_utils.cc`) and XLA's `xplane_schema.cc`. No trace of a real TPU has been read yet;
XProf 2.24.2 finds the same self times in planes that are encoded by these sources.
"""

import re

import numpy as np

from dovetail_profile.trace.operations import Operations
from dovetail_profile.trace.space import Line, Plane

PLANE = re.compile(r"/device:TPU:(\d+)")  # and no SparseCore, whose name has more
_INSTRUCTIONS, _PROGRAMS = "XLA Ops", "XLA Modules"
_HLO = re.compile(r"(?:ROOT )?%?([^\s=]+)(?: = .*)?", re.DOTALL)
_NUMBERED = re.compile(r".*\((\d+)\)")  # jit_step(12)


def of_tpu(plane: Plane, host: int) -> list[Operations]:
    """Returns what a TPU executed."""
    device = int(PLANE.fullmatch(plane.name)[1])  # pyright: ignore[reportOptionalSubscript] -- it has matched
    modules = [line for line in plane.lines if line.name == _PROGRAMS]
    return [
        _operations(line, modules, host=host, device=device)
        for line in plane.lines
        if line.name == _INSTRUCTIONS
    ]


def _operations(line: Line, modules: list[Line], *, host: int, device: int) -> Operations:
    names = [match[1] if (match := _HLO.fullmatch(name)) else name for name in line.names]
    shared = [_integer(kind.get("program_id")) for kind in line.kinds]
    program, run = _of_modules(line, modules)
    own = np.array([*shared, -1], np.int64)[line.code] if len(line) else program
    count = len(line)
    return Operations(
        host=np.full(count, host),
        device=np.full(count, device),
        lane=np.zeros(count, np.int64),
        start_ps=line.start_ps,
        duration_ps=line.duration_ps,
        program=np.where(own >= 0, own, program),
        run=run,
        code=line.code.astype(np.int64),
        names=tuple(names),
        lanes=(f"/device:TPU:{device} {line.name}",),
    )


def _of_modules(line: Line, modules: list[Line]) -> tuple[np.ndarray, np.ndarray]:
    """Returns number and run of the program that ran when each event of a line began: -1: none."""
    program, run = np.full((2, len(line)), -1)
    for module in modules:
        order = np.argsort(module.start_ps, kind="stable")
        place = np.searchsorted(module.start_ps[order], line.start_ps, side="right") - 1
        inside = np.flatnonzero(place >= 0)
        at = order[place[inside]]
        inside = inside[line.start_ps[inside] < (module.start_ps + module.duration_ps)[at]]
        at = order[place[inside]]
        numbers = [_integer(m[1] if (m := _NUMBERED.fullmatch(n)) else None) for n in module.names]
        program[inside] = np.array([*numbers, -1], np.int64)[module.code[at]]
        run[inside] = module.stats("run_id").of_each(len(module))[at]
    return program, run


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() else -1
