# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Planes of TPUs, as XProf reads them: instructions, programs and their runs."""

from encoding import Plane, trace

from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import parse

LOOP = "%while.5 = (s32[], f32[8]{0}) while(%tuple), body=%body"
FUSION = "%fusion.12 = f32[8,128]{1,0:T(8,128)} fusion(%p.1, %p.2), kind=kLoop"


def test_instructions_have_program_and_run_and_no_line_counts_twice() -> None:
    plane = Plane("/device:TPU:2")
    plane.kind(FUSION, {"program_id": 9, "hlo_category": "loop fusion", "flops": 1024})
    plane.line("Steps", [("0", 0, 5000, {})])
    plane.line(
        "XLA Modules",
        [("jit_f(9)", 2000, 900, {"run_id": 32}), ("jit_f(9)", 0, 1000, {"run_id": 31})],
        start_ns=1,
    )
    plane.line(
        "XLA Ops",
        [
            (LOOP, 0, 600, {}),
            (FUSION, 100, 200, {}),
            (FUSION, 400, 200, {}),
            (FUSION, 2100, 250, {}),
            ("copy.1", 950, 5, {}),
            ("copy.1", 1500, 7, {}),
        ],
        start_ns=1,
    )
    plane.line("Async XLA Ops", [("%copy-start.1 = f32[8]{0} copy-start(%p)", 0, 900, {})])
    other = Plane("/device:TPU:2 SparseCore 0").line("XLA Ops", [(FUSION, 0, 100, {})])
    runs = Recording([parse(trace(plane, other))], ["host"]).operations
    rows = zip(runs.code, runs.start_ps, runs.self_ps, runs.program, runs.run, strict=True)
    assert [(runs.names[c], *map(int, rest)) for c, *rest in rows] == [
        ("while.5", 1000, 200, 9, 31),
        ("fusion.12", 1100, 200, 9, 31),
        ("fusion.12", 1400, 200, 9, 31),
        ("copy.1", 1950, 5, 9, 31),
        ("copy.1", 2500, 7, -1, -1),
        ("fusion.12", 3100, 250, 9, 32),
    ]
    assert set(runs.device.tolist()) == {2}


def test_a_plane_without_programs_or_events_is_read() -> None:
    plane = Plane("/device:TPU:0").kind(FUSION, {"program_id": 4})
    plane.line("XLA Ops", [(FUSION, 5, 6, {})]).line("XLA Ops", []).line("XLA Modules", [])
    runs = Recording([parse(trace(plane))], ["host"]).operations
    assert (runs.program.tolist(), runs.run.tolist()) == ([4], [-1])
