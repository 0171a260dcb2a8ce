# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Work of GPUs: kernels, copies and whole command buffers on the streams of a plane.

The plane `/device:GPU:0` has a line for each stream. Instruction, module and program of a kernel
are values of its event. Allocations on the same lines are no work. Lines of viewers repeat the
kernels' time.

Source of the names: XLA's `cupti_collector.cc`, `rocm_collector.cc`, `xplane_schema.cc`. No trace
of a real GPU has been read yet. On encoded planes XProf 2.24.2 agrees on self times and launches.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from dovetail_profile.trace.operations import Operations
from dovetail_profile.trace.space import Line, Plane, Stats

PREFIX = "/device:GPU:"
_DERIVED = re.compile(  # lines of viewers
    "(Steps|XLA Modules|XLA Ops|Async XLA Ops|Framework Name Scope|Framework Ops|Launch Stats|"
    "Source code)( - from #.*)?"
)
# Each of these values marks an event as work of the device.
_KERNEL = ("kernel_details", "cuda_graph_exec_id")
_WORK = (*_KERNEL, "memcpy_details", "Memset_details", "hlo_op")


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Runs of kernels, and of command buffers without traced kernels, in the order of the file.

    Columns are int64 [runs]; -1 is unknown.

    Attributes:
        host: Index of the host.
        device: Index of the device on its host.
        start_ps: Time after the start of the host's trace.
        duration_ps: Duration.
        program: Number of the program.
        instruction: Index of the instruction's name in `names`.
        kernel: Index of the kernel's name in `names`.
        graph: Number of the command buffer; 0: none.
        registers: Registers per thread.
        static_bytes: Shared memory per block, declared by the kernel.
        dynamic_bytes: Shared memory per block, requested by the launch.
        grid: Blocks, [runs, 3].
        block: Threads of a block, [runs, 3].
        occupancy: Resident threads, as a share of a multiprocessor's, float64; NaN: unknown.
        names: The different names.
    """

    host: np.ndarray
    device: np.ndarray
    start_ps: np.ndarray
    duration_ps: np.ndarray
    program: np.ndarray
    instruction: np.ndarray
    kernel: np.ndarray
    graph: np.ndarray
    registers: np.ndarray
    static_bytes: np.ndarray
    dynamic_bytes: np.ndarray
    grid: np.ndarray
    block: np.ndarray
    occupancy: np.ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ps)


def of_gpu(plane: Plane, host: int) -> list[Operations]:
    """Returns the runs of a GPU's streams. Without an instruction, a run has its own name."""
    return [_operations(plane, line, host) for line in _streams(plane)]


def kernels_of(planes: Sequence[tuple[int, Plane]]) -> Kernels:
    """Returns the kernels of GPUs: pairs of the index of the host and the plane."""
    names: dict[str, int] = {}
    rows = [
        _kernels(plane, line, host, names) for host, plane in planes for line in _streams(plane)
    ]
    columns = {
        f.name: np.concatenate([row[f.name] for row in rows]) if rows else np.zeros(0, np.int64)
        for f in dataclasses.fields(Kernels)
        if f.name != "names"
    }
    return Kernels(**columns, names=tuple(names))


def _streams(plane: Plane) -> list[Line]:
    return [line for line in plane.lines if not _DERIVED.fullmatch(line.name)]


def _ordinal(plane: Plane) -> int:
    number = plane.name.removeprefix(PREFIX)
    return int(number) if number.isdecimal() else 0


def _instructions(line: Line) -> Stats:
    """The innermost instruction of each event that has one."""
    stats = line.texts("hlo_op")
    return dataclasses.replace(stats, texts=tuple(t.split("::")[-1] for t in stats.texts))


def _having(line: Line, names: Sequence[str]) -> np.ndarray:
    """Returns the places of events with a value of any of `names`."""
    mask = np.zeros(len(line), bool)
    for name in names:
        mask[line.stats(name).owner] = True
    return np.flatnonzero(mask)


def _operations(plane: Plane, line: Line, host: int) -> Operations:
    at = _having(line, _WORK)
    instructions = _instructions(line)
    code = line.code + len(instructions.texts)
    code[instructions.owner] = instructions.value
    used, code = np.unique(code[at], return_inverse=True)
    names = (*instructions.texts, *line.names)
    return Operations(
        host=np.full(len(at), host),
        device=np.full(len(at), _ordinal(plane)),
        lane=np.zeros(len(at), np.int64),
        start_ps=line.start_ps[at],
        duration_ps=line.duration_ps[at],
        program=line.each("program_id")[at],
        run=np.full(len(at), -1),
        code=code,
        names=tuple(names[i] for i in used),
        lanes=(f"{plane.name} {line.name}",),
    )


def _kernels(plane: Plane, line: Line, host: int, names: dict[str, int]) -> dict[str, np.ndarray]:
    at, count = _having(line, _KERNEL), len(line)
    texts, instructions = line.texts("kernel_details"), _instructions(line)
    read = [_details(text) for text in (*texts.texts, "")]  # the last, for events without
    place = texts.of_each(count, len(read) - 1)[at]
    integers = np.array([row[0] for row in read], np.int64)[place]

    def codes(of: Sequence[str]) -> np.ndarray:
        return np.array([*(names.setdefault(name, len(names)) for name in of), -1], np.int64)

    return {
        "host": np.full(len(at), host),
        "device": np.full(len(at), _ordinal(plane)),
        "start_ps": line.start_ps[at],
        "duration_ps": line.duration_ps[at],
        "program": line.each("program_id")[at],
        "instruction": codes(instructions.texts)[instructions.of_each(count)[at]],
        "kernel": codes(line.names)[line.code[at]],
        "graph": np.maximum(line.each("cuda_graph_id", 0), line.each("cuda_graph_exec_id", 0))[at],
        "registers": integers[:, 0],
        "static_bytes": integers[:, 1],
        "dynamic_bytes": integers[:, 2],
        "grid": integers[:, 3:6],
        "block": integers[:, 6:9],
        "occupancy": np.array([row[1] for row in read])[place],
    }


def _details(text: str) -> tuple[list[int], float]:
    """Reads "regs:32 static_shared:0 dynamic_shared:0 grid:4,1,1 block:128,1,1 occ_pct:100"."""
    values = dict(word.split(":", 1) for word in text.split() if ":" in word)

    def integers(key: str, count: int) -> list[int]:
        numbers = [int(n) for n in values.get(key, "").split(",") if n.isdecimal()]
        return numbers if len(numbers) == count else [-1] * count

    single = [n for key in ("regs", "static_shared", "dynamic_shared") for n in integers(key, 1)]
    try:
        occupancy = float(values["occ_pct"]) / 100
    except (KeyError, ValueError):
        occupancy = float("nan")
    return [*single, *integers("grid", 3), *integers("block", 3)], occupancy
