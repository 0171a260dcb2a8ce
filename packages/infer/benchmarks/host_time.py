# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time of the engine's own thread per step of 64 rows, on a decoder of one layer.

host_us is `Stats.host_s` per step: planning, batches, dispatch and results, in the engine's thread.
Three more figures say whether it is all: CPU time of the whole process, from which that of the
programs is subtracted. The steps of a run are recorded and replayed through the same compiled
programs alone (program_us), which on a CPU compute in the same process. added_us is the process in
`Engine.generate` less that; executor_us the process in `Executor.dispatch` and `Handle.read` less
that.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flax import nnx

from dovetail_infer import Engine, Sampling
from dovetail_infer.testing import TinyDecoder
from measure import report, rounds

ROWS, PROMPT, NEW, REPEATS = 64, 16, 128, 15
CASES = {
    "greedy": Sampling(max_tokens=NEW, temperature=0, ignore_eos=True),
    "sampled, top-k and top-p": Sampling(
        max_tokens=NEW, temperature=0.8, top_k=40, top_p=0.9, seed=7, ignore_eos=True
    ),
}


class Recorded:
    """An engine, and the steps of its last run.

    It replays them through the engine's own executor, which stands still meanwhile.
    """

    def __init__(self, sampling: Sampling):
        model = TinyDecoder(depth=1, rngs=nnx.Rngs(0))
        self.engine = Engine(model, max_rows=ROWS, max_length=256, prefix_cache=False)
        self.executor: Any = self.engine._executor
        self.dispatch, self.steps = self.executor.dispatch, []
        self.executor.dispatch = self._record
        rng = np.random.default_rng(0)
        self.prompts = rng.integers(0, 256, (ROWS, PROMPT)).tolist()
        self.sampling = sampling

    def _record(self, batch: Any, **options: Any) -> Any:
        self.steps.append((batch, options))
        return self.dispatch(batch, **options)

    def run(self) -> None:
        """A run of the engine."""
        self.steps.clear()
        self.engine.generate(self.prompts, self.sampling)

    def through_executor(self) -> None:
        """The steps of the last run, each read when the next has started."""
        last = None
        for batch, options in self.steps:
            handle = self.dispatch(batch, **options)
            if last is not None:
                last.read()
            last = handle
        last.read()

    def through_programs(self) -> None:
        """The same without the work of the host."""
        executor = self.executor
        for program, vector in self.packed:
            last = program(executor._parameters, executor._state, vector)
            executor._state, outputs = last
            np.asarray(outputs.packed)

    def pack(self) -> None:
        """Keeps the programs and packed inputs of the last run."""
        self.packed = []
        for batch, options in self.steps:
            key = self.executor._choose(len(batch.tokens), len(batch.counts), options["kind"], 0)
            vector = self.executor._function.packing(key[0]).pack(batch)
            self.packed.append((self.executor._compiled[key].call, vector))


def cpu_us(call: Callable[[], None], steps: int) -> float:
    """CPU microseconds of the process, all threads, over the steps."""
    begin = time.process_time()
    call()
    return (time.process_time() - begin) / steps * 1e6


def run_us(recorded: Recorded, steps: int) -> tuple[float, float]:
    """Of a run of the engine: the thread's microseconds per step, and the process's."""
    before = recorded.engine.stats().host_s
    process = cpu_us(recorded.run, steps)
    return (recorded.engine.stats().host_s - before) / steps * 1e6, process


def contest(name: str, sampling: Sampling) -> None:
    """Prints the line of a case."""
    recorded = Recorded(sampling)
    recorded.run()
    recorded.pack()
    count = len(recorded.packed)
    results = rounds(
        {
            "engine": lambda: run_us(recorded, count),
            "executor": lambda: cpu_us(recorded.through_executor, count),
            "program": lambda: cpu_us(recorded.through_programs, count),
        },
        repeats=REPEATS,
    )
    threads, processes = zip(*results["engine"], strict=True)
    program = statistics.median(results["program"])
    report(
        f"{ROWS} rows {name}",
        metric="host_us",
        unit="us/step",
        values=threads,
        program_us=program,
        added_us=statistics.median(processes) - program,
        executor_us=statistics.median(results["executor"]) - program,
        steps=count,
    )
    recorded.engine.close()


def main() -> None:
    for name, sampling in CASES.items():
        contest(name, sampling)


if __name__ == "__main__":
    main()
