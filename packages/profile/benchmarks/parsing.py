# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds from the file of a trace to the self time of each instruction.

Against XProf's table of instructions from the same file (`hlo_stats`; its op profile shares all but
the last step). Each reading is a process of its own and counts from after the imports. XProf keeps
its result beside the file, so each reading has a copy of the file in a new folder.

- cpu: a trace that this program captures, of about 100,000 runs of instructions and as many other
  events. XProf's table of a trace of a CPU is empty.
- gpu: 100,000 kernels of the same program in a plane that the tests' encoder writes as XLA's
  collector does. Both readers must give the same self time to each instruction.

`--xprof PYTHON` names an interpreter that has xprof, if this one has not; without either the lines
have no peer.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import report, rounds

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

REPEATS = 5
TRIPS, CALLS, OPS = 2500, 3, 6  # two instructions for each of OPS, one more for each trip
KERNELS = 100_000


def capture(folder: Path) -> Path:
    """Traces a program of many short instructions on the CPU."""
    import jax
    import jax.numpy as jnp

    def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        for i in range(OPS):
            x = jnp.sort(jnp.tanh(x * 1.01 + i), axis=0)
        return x, None

    program = jax.jit(lambda x: jax.lax.scan(body, x, None, length=TRIPS)[0])
    x = program(jnp.ones((16, 4))).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, profiler_options=options)
    for _ in range(CALLS):
        program(x).block_until_ready()
    jax.profiler.stop_trace()
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    return file


def encode(captured: Path, folder: Path) -> Path:
    """Writes a trace in which a GPU runs the instructions of a captured program in turn."""
    from encoding import Event, Plane, trace

    from dovetail_profile.trace.files import load

    recording = load(captured)
    (_, program), module = max(recording.modules.items(), key=lambda x: len(x[1].instructions))
    names = [x.name for x in module.instructions.values() if x.opcode in ("fusion", "sort")]
    kinds = recording.spaces[0].plane("/host:metadata").kinds.values()  # pyright: ignore[reportOptionalMemberAccess] -- a trace of a CPU has it
    (hlo,) = (v["Hlo Proto"] for _, v in kinds if v.get("program_id") == program)
    details = "regs:32 static_shared:0 dynamic_shared:0 grid:4,1,1 block:128,1,1 occ_pct:100"
    shared = {"kernel_details": details, "hlo_module": module.name, "program_id": program}
    events: list[Event] = []
    for i in range(KERNELS):
        name = names[i % len(names)]
        events.append((f"kernel {name}", 10**6 * i, 9 * 10**5 + i, shared | {"hlo_op": name}))
    device = Plane("/device:GPU:0", device_vendor="Nvidia", core_count=132, clock_rate=1755000)
    device.line("Stream #13(Kernel)", events)
    programs = Plane("/host:metadata")
    programs.kind(f"{module.name}({program})", {"Hlo Proto": hlo}, number=program)
    file = folder / "gpu.xplane.pb"
    file.write_bytes(trace(programs, device, Plane("/host:CPU"), host="host"))
    return file


def ours(path: Path) -> dict[str, float]:
    """Returns the self time of each instruction, in microseconds."""
    import numpy as np

    from dovetail_profile.trace.files import load

    runs = load(path).operations
    times = np.bincount(runs.code, weights=runs.self_ps, minlength=len(runs.names)) / 1e6
    return dict(zip(runs.names, times.tolist(), strict=True))


def theirs(path: Path) -> dict[str, float]:
    from xprof.convert import raw_to_tool_data  # pyright: ignore[reportMissingImports] -- optional

    table = json.loads(raw_to_tool_data.xspace_to_tool_data([str(path)], "hlo_stats", {})[0])
    columns = [column["id"] for column in table["cols"]]
    name, own = columns.index("hlo_op_name"), columns.index("total_self_time")
    return {row["c"][name]["v"]: row["c"][own]["v"] for row in table["rows"]}


def run(reader: str, path: Path) -> None:
    """Reads the file in this process, and prints cost and result as JSON."""
    if reader == "ours":
        import dovetail_profile.trace.files  # noqa: F401 -- before the clock
    else:
        import xprof.convert.raw_to_tool_data  # noqa: F401  # pyright: ignore[reportMissingImports]
    begun = time.process_time()
    times = {"ours": ours, "xprof": theirs}[reader](path)
    spent = time.process_time() - begun
    print(json.dumps({"cpu_s": spent, "times": {k: v for k, v in times.items() if v}}))


def measured(reader: str, python: str, path: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, folder)
        line = [python, __file__, "--run", reader, str(copy)]
        return json.loads(subprocess.check_output(line, stderr=subprocess.DEVNULL))


def compare(case: str, path: Path, python: str | None) -> None:
    """Reports one file."""
    readers = {"ours": lambda: measured("ours", sys.executable, path)}
    if python:
        for name in ("xprof", "again"):
            readers[name] = lambda: measured("xprof", python, path)
    costs = rounds(readers, repeats=REPEATS)
    own, peer = costs["ours"][0]["times"], costs["xprof"][0]["times"] if python else {}
    for name in own if peer else ():
        assert abs(own[name] - peer[name]) < 1e-6 * own[name], name  # they print 7 digits at least
    seconds = {name: [cost["cpu_s"] for cost in costs[name]] for name in costs}
    report(
        case,
        metric="cpu_s",
        unit="s",
        values=seconds["ours"],
        peer=f"xprof {xprof_version(python)}" if python else None,
        peer_values=seconds.get("xprof"),
        peer_again=seconds.get("again"),
        rows=len(own),
        peer_rows=len(peer) if python else None,
        file_bytes=path.stat().st_size,
    )


def xprof_version(python: str) -> str | None:
    """Returns the version that an interpreter has, or None."""
    code = "import importlib.metadata as m; print(m.version('xprof'))"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--xprof", default=sys.executable)
    parser.add_argument("--run", nargs=2)
    args = parser.parse_args()
    if args.run:
        run(args.run[0], Path(args.run[1]))
        return
    python = args.xprof if xprof_version(args.xprof) else None
    with tempfile.TemporaryDirectory() as name:
        captured = capture(Path(name))
        compare("cpu: a captured trace", captured, python)
        compare("gpu: 100,000 kernels, encoded", encode(captured, Path(name)), python)


if __name__ == "__main__":
    main()
