# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds from the file of a trace to the table of operations, against XProf's tool.

A program of small operations in a loop is traced, until the file has about so many runs of
instructions. XProf's table is empty for a CPU; its time is that of reading the file.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
from xprof.convert import raw_to_tool_data

from dovetail_profile import read
from measure import cost, report, rounds

RUNS = (10_000, 100_000)
REPEATS = 5


def trace(folder: Path, runs: int) -> Path:
    """Returns the file of a trace with at least so many runs of instructions."""

    @jax.jit
    def program(x):
        def step(x, _):
            return jnp.sort(jnp.tanh(x @ x), axis=0), x.sum()

        return jax.lax.scan(step, x, length=runs // 4)

    x = jnp.ones((8, 8))
    jax.block_until_ready(program(x))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        jax.block_until_ready(program(x))
    (file,) = folder.rglob("*.xplane.pb")
    return file


def main() -> None:
    for runs in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            file = trace(Path(folder), runs)
            calls = sum(read(file).ops().column("calls"))

            def theirs(file: Path = file) -> object:
                return raw_to_tool_data.xspace_to_tool_data([str(file)], "hlo_stats", {})

            costs = rounds(
                {
                    "ours": lambda file=file: cost(lambda: read(file).ops()),
                    "theirs": lambda theirs=theirs: cost(theirs),
                    "again": lambda theirs=theirs: cost(theirs),
                },
                repeats=REPEATS,
            )
            cpu_s = {name: [c.cpu_s for c in values] for name, values in costs.items()}
            report(
                f"{calls:,} runs of instructions",
                metric="cpu_s",
                unit="s",
                values=cpu_s["ours"],
                peer="xprof",
                peer_values=cpu_s["theirs"],
                peer_again=cpu_s["again"],
                file_bytes=file.stat().st_size,
            )


if __name__ == "__main__":
    main()
