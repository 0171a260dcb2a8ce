# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Work of TPUs: the lines "XLA Ops" (instructions) and "XLA Modules" (programs) of a plane.

An event of an instruction is named by its HLO text; its kind may have the program. Other lines
repeat the same time by step or scope, or show asynchronous copies.

Source of the names: XProf's `xplane_to_op_metrics_db.cc` and `op_metrics_db_utils.cc`, XLA's
`xplane_schema.cc`. No trace of a real TPU has been read yet. On encoded planes XProf 2.24.2 agrees
on self times.
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
    """Returns the runs of a TPU. `host` is the index of its host."""
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
    return Operations(
        host=np.full(len(line), host),
        device=np.full(len(line), device),
        lane=np.zeros(len(line), np.int64),
        start_ps=line.start_ps,
        duration_ps=line.duration_ps,
        program=np.where(own >= 0, own, program),
        run=run,
        code=line.code,
        names=tuple(names),
        lanes=(f"/device:TPU:{device} {line.name}",),
    )


def _of_modules(line: Line, modules: list[Line]) -> tuple[np.ndarray, np.ndarray]:
    """Returns number and run of the program at the start of each event; -1: none."""
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
        run[inside] = module.each("run_id")[at]
    return program, run


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() else -1
