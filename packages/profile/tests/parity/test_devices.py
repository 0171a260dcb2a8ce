# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""XProf's tables of encoded planes of a GPU and a TPU, which no machine of the tests has."""

import json
from pathlib import Path

import numpy as np
import pytest
from encoding import Event, Plane, Stat, trace

from dovetail_profile.trace.files import load
from dovetail_profile.trace.recording import Recording

raw_to_tool_data = pytest.importorskip("xprof.convert.raw_to_tool_data")

pytestmark = pytest.mark.parity

FIXTURE = Path(__file__).parents[1] / "fixtures" / "jax-0.12.0.1.xplane.pb"
GPU: dict[str, Stat] = {"device_vendor": "Nvidia", "core_count": 132, "clock_rate": 1755000}
TPU: dict[str, Stat] = {"device_type_string": "TPU v5 lite", "peak_teraflops_per_second": 200.0}


def runs(seed: int) -> tuple[Plane, dict[str, Stat], list[tuple[str, int, int]]]:
    """Runs of the instructions of a real program: its plane, its values, name, start, length."""
    recording = load(FIXTURE)
    ((_, program), module), *_ = (x for x in recording.modules.items() if "train" in x[1].name)
    plane = recording.spaces[0].plane("/host:metadata")
    assert plane is not None
    (hlo,) = (v["Hlo Proto"] for _, v in plane.kinds.values() if v.get("program_id") == program)
    programs = Plane("/host:metadata")
    programs.kind(f"{module.name}({program})", {"Hlo Proto": hlo}, number=program)
    rng, at = np.random.default_rng(seed), 5000
    names = [x.name for x in module.entry.instructions if x.opcode in ("fusion", "dot")]
    drawn = []
    for i in rng.integers(len(names), size=300):
        length = int(rng.integers(1000, 900_000))
        drawn.append((names[i], at, length))
        at += length + int(rng.integers(5000))
    return programs, {"program_id": program, "hlo_module": module.name}, drawn


def read(tool: str, file: Path) -> list[dict[str, str | float]]:
    table = json.loads(raw_to_tool_data.xspace_to_tool_data([str(file)], tool, {})[0])
    table = table[0] if isinstance(table, list) else table
    names = [column["id"] for column in table["cols"]]
    cells = [[cell["v"] for cell in row["c"]] for row in table["rows"]]
    return [dict(zip(names, values, strict=True)) for values in cells]


def compare_operations(file: Path) -> Recording:
    """Compares runs and self time of each instruction."""
    recording = load(file)
    own = recording.operations
    times = np.bincount(own.code, own.self_ps, len(own.names)) / 1e6
    counts = np.bincount(own.code, minlength=len(own.names))
    rows = {row["hlo_op_name"]: row for row in read("hlo_stats", file)}
    assert rows.keys() == set(own.names)
    for name, microseconds, count in zip(own.names, times, counts, strict=True):
        assert rows[name]["occurrences"] == count
        # They print 7 digits.
        assert microseconds == pytest.approx(rows[name]["total_self_time"], rel=1e-6)
    return recording


def test_a_gpu_has_the_times_and_launches_of_xprof(tmp_path: Path) -> None:
    programs, values, drawn = runs(0)
    events: list[Event] = []
    for name, start, length in drawn:
        n = len(name)
        shape = f"grid:{n},2,1 block:{4 * n},1,1"
        details = f"regs:{20 + n} static_shared:{16 * n} dynamic_shared:32 {shape} occ_pct:50"
        own: dict[str, Stat] = {"kernel_details": details, "hlo_op": name}
        events.append((f"kernel of {name}", start, length, values | own))
    device = Plane("/device:GPU:0", **GPU).line("Stream #13(Kernel)", events)
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(trace(programs, device, Plane("/host:CPU"), host="host"))
    kernels = compare_operations(file).kernels
    rows = read("kernel_stats", file)
    assert {row["kernel_name"] for row in rows} <= set(kernels.names)
    for row in rows:
        at = np.flatnonzero(kernels.kernel == kernels.names.index(str(row["kernel_name"])))
        assert row["occurrences"] == len(at)
        assert {row["registers_per_thread"]} == set(kernels.registers[at])
        assert {row["shmem_bytes"]} == set((kernels.static_bytes + kernels.dynamic_bytes)[at])
        assert row["grid_dim"] == ",".join(map(str, kernels.grid[at[0]]))
        assert row["block_dim"] == ",".join(map(str, kernels.block[at[0]]))
        assert row["occupancy_pct"] == 100 * kernels.occupancy[at[0]]
        # They round each run to a whole nanosecond.
        total = kernels.duration_ps[at].sum() / 1e6
        assert total == pytest.approx(row["total_duration_us"], abs=1e-3 * len(at))


def test_a_tpu_has_the_times_of_xprof_also_in_a_loop(tmp_path: Path) -> None:
    programs, values, drawn = runs(1)
    device, end = Plane("/device:TPU:0", **TPU), drawn[-1][1] + 10**6
    texts = {name: f"%{name} = f32[8]{{0}} fusion(%p)" for name, _, _ in drawn}
    texts["while.9"] = "%while.9 = (f32[8]{0}) while(%t), body=%b"
    for number, text in enumerate(texts.values(), 1):
        category = "while" if "while" in text else "loop fusion"
        device.kind(text, values | {"symbol_id": number, "hlo_category": category, "flops": 100})
    device.line("Steps", [("0", 0, end, {})])
    device.line("XLA Modules", [("jit_f(1)", 1000, end, {"run_id": 5})])
    inner: list[Event] = [(texts[name], start, length, {}) for name, start, length in drawn]
    device.line("XLA Ops", [(texts["while.9"], 2000, end - 3000, {}), *inner])
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(trace(programs, device, Plane("/host:CPU"), host="host"))
    assert set(compare_operations(file).operations.run.tolist()) == {5}
