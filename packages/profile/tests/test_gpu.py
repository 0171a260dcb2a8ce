# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Planes of GPUs, written as XLA's collectors do: runs, kernels, command buffers."""

import numpy as np
from encoding import Plane, Stat, hlo, trace

from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import parse

DETAILS = "regs:40 static_shared:1024 dynamic_shared:2048 grid:7,3,1 block:128,2,1 occ_pct:62.5"
AMD = " grid:5,1,1 block:64,1,1 private:0"


def metadata(program: int, opcodes: dict[str, str]) -> Plane:
    values = {"Hlo Proto": hlo(f"jit_f{program}", opcodes)}
    return Plane("/host:metadata").kind(f"jit_f({program})", values, number=program)


def named(instruction: str, program: int = 9) -> dict[str, Stat]:
    return {"hlo_op": instruction, "hlo_module": "jit_f", "program_id": program}


def device(number: int = 0) -> Plane:
    """Two streams, and the lines that a viewer derives from them."""
    kernel: dict[str, Stat] = {"kernel_details": DETAILS, "correlation_id": 4}
    plane = Plane(f"/device:GPU:{number}", device_vendor="Nvidia")
    plane.line(
        "Stream #13(Kernel,MemcpyD2D)",
        [
            ("gemm", 1000, 400, kernel | named("dot.1")),
            ("loop", 2000, 100, kernel | named("while.2::fusion.3")),
            ("MemcpyD2D", 3000, 50, {"memcpy_details": "size:4"} | named("copy.4")),
            ("MemcpyH2D", 4000, 70, {"memcpy_details": "size:4"}),
            ("MemoryResidency", 0, 9999, {"MemoryResidency_details": "kind:Device"}),
        ],
        start_ns=2,
    )
    plane.line("Stream #14(Kernel)", [("amd", 0, 10, {"kernel_details": AMD} | named("dot.1"))])
    plane.line("XLA Ops", [("dot.1", 3000, 400, named("dot.1"))])
    plane.line("XLA Modules - from #13", [("jit_f(9)", 3000, 3000, kernel | named("dot.1"))])
    return plane


OPCODES = {"dot.1": "dot", "fusion.3": "fusion", "copy.4": "copy"}


def read(*planes: Plane) -> Recording:
    return Recording([parse(trace(*planes))], ["host"])


def test_streams_are_lanes_and_derived_lines_do_not_count() -> None:
    recording = read(metadata(9, OPCODES), device(0), device(3))
    runs = recording.operations
    assert recording.notes == ()
    assert sorted(set(runs.lanes)) == [
        f"/device:GPU:{n} Stream #{s}"
        for n in (0, 3)
        for s in ("13(Kernel,MemcpyD2D)", "14(Kernel)")
    ]
    first = runs.select(runs.device == 0)
    rows = zip(first.code, first.start_ps, first.duration_ps, first.program, strict=True)
    assert sorted((runs.names[c], s, d, p) for c, s, d, p in rows) == [
        ("MemcpyH2D", 6000, 70, -1),
        ("copy.4", 5000, 50, 9),
        ("dot.1", 0, 10, 9),
        ("dot.1", 3000, 400, 9),
        ("fusion.3", 4000, 100, 9),
    ]
    assert runs.self_ps.sum() == 2 * (400 + 100 + 50 + 70 + 10)
    assert sorted(set(runs.device.tolist())) == [0, 3]


def test_kernels_have_their_launch() -> None:
    kernels = read(device()).kernels
    assert [kernels.names[k] for k in kernels.kernel] == ["gemm", "loop", "amd"]
    assert [kernels.names[k] for k in kernels.instruction] == ["dot.1", "fusion.3", "dot.1"]
    assert kernels.registers.tolist() == [40, 40, -1]
    assert kernels.static_bytes.tolist() == [1024, 1024, -1]
    assert kernels.dynamic_bytes.tolist() == [2048, 2048, -1]
    assert kernels.grid.tolist() == [[7, 3, 1], [7, 3, 1], [5, 1, 1]]
    assert kernels.block.tolist() == [[128, 2, 1], [128, 2, 1], [64, 1, 1]]
    np.testing.assert_array_equal(kernels.occupancy, [0.625, 0.625, np.nan])
    assert kernels.start_ps.tolist() == [3000, 4000, 0]
    assert kernels.program.tolist() == [9, 9, 9]
    assert len(read(Plane("/host:CPU")).kernels) == 0


def test_kernels_in_command_buffers_are_told_with_the_flag() -> None:
    kernel: dict[str, Stat] = {"kernel_details": DETAILS}
    plane = Plane("/device:GPU:0").line(
        "Stream #1(Kernel,CudaGraph)",
        [
            ("gemm", 0, 600, kernel | named("dot.1")),
            ("node", 600, 100, kernel | {"cuda_graph_id": 77} | named("command_buffer")),
            ("node", 700, 100, kernel | {"cuda_graph_id": 77}),
            ("CudaGraph", 800, 200, {"cuda_graph_exec_id": 78}),
        ],
    )
    recording = read(metadata(9, {"dot.1": "dot", "command_buffer": "call"}), plane)
    assert recording.kernels.graph.tolist() == [0, 77, 77, 78]
    assert recording.operations.duration_ps.sum() == 1000
    (note,) = recording.notes
    assert note.startswith("3 kernels, 40.0% of the time of kernels, have no instruction")
    assert "XLA_FLAGS=--xla_gpu_enable_command_buffer= " in note
