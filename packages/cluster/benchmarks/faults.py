# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the faults that a trainer with a checkpoint store survives, bit for bit, and their causes.

`dovetail_train.Trainer.fit` saves in a `dovetail_checkpoint.Store` while
`dovetail_cluster.testing.survives` kills ranks and daemons, stops and stalls ranks, raises in them,
sends notices and takes hosts away, at seeded steps. It fails if a value differs from that of the
unbroken run, or a process is left. Each fault must then be the cause that the job has told, with
the struck host: that is counted. A fault costs 4 to 12 seconds.

    python benchmarks/faults.py --faults 100
"""

import argparse
import logging
import re
import statistics
import time
from collections import Counter
from typing import Any

from dovetail_cluster import Context, Elastic
from dovetail_cluster.fault_plan import Fault
from dovetail_cluster.testing import Report, survives
from measure import report

EVERY = 3  # steps between saves
# What the job must say of a fault: the struck host is part of it.
TOLD = {
    "kill": r"rank \d on local host {host} was killed by signal 9 \(SIGKILL\)",
    "kill_daemon": r"rank \d on local host {host} was lost",
    "remove": r"rank \d on local host {host} was lost",
    "stop": r"The job is stuck: rank \d on local host {host} ",
    "stall": r"The job is stuck: rank \d on local host {host} ",
    "raise": r"rank {host} raised RuntimeError: injected by fault {number} ",
    "notice": r"stops at an agreed step: rank \d on local host {host} will be taken away",
}


def train(ctx: Context, steps: int) -> tuple[int, bytes]:
    """Fits a linear model. Returns its steps and its kernel."""
    import jax
    import numpy as np
    import optax
    from flax import nnx

    from dovetail_checkpoint import Store
    from dovetail_train import Trainer

    class Rows:
        """Batches by number: each rank has its rows."""

        at = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> dict[str, Any]:
            x = np.random.default_rng([self.at, ctx.rank]).normal(size=(2, 8)).astype(np.float32)
            self.at += 1
            return {"x": x, "y": x.sum(1)}

        def get_state(self) -> dict[str, int]:
            return {"at": self.at}

        def set_state(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    def loss(model: Any, batch: Any, *, key: Any) -> tuple[Any, Any]:
        del key
        error = model(batch["x"])[:, 0] - batch["y"]
        return (error**2).sum(), np.float32(error.size)

    trainer = Trainer(optax.adam(0.01), loss, mesh=ctx.mesh(data=-1))
    with Store("checkpoints") as store:
        result = trainer.fit(
            nnx.Linear(8, 1, rngs=nnx.Rngs(0)),
            Rows(),
            steps=steps,
            store=ctx.store(store),
            save_every=EVERY,
            stop=ctx.stop,
            sinks=[ctx.progress],
        )
    kernel = np.asarray(jax.device_get(result.state.params)["kernel"][...])
    return result.step, kernel.tobytes()


class Said(logging.Handler):
    """Keeps the lines of the job."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a line."""
        self.lines.append(record.getMessage())


def told(fault: Fault, lines: list[str]) -> bool:
    """Tests whether one line tells this fault as a cause."""
    pattern = TOLD[fault.kind].format(host=fault.host, number=fault.number)
    return any(re.search(pattern, line) for line in lines)


def of_generation(number: int, lines: list[str]) -> list[str]:
    """Returns the lines of a generation of the broken run, which is the second one."""
    starts = [i for i, line in enumerate(lines) if re.match(r"generation \d+ starts", line)]
    begin = starts[number + 1]
    end = starts[number + 2] if number + 2 < len(starts) else len(lines)
    return lines[begin:end]


def campaign(faults: int, *, hosts: int, seed: int) -> tuple[Report, list[str]]:
    """Runs it. Returns the report, and the faults that were told as something else."""
    said = Said()
    logger = logging.getLogger("dovetail_cluster")
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    elastic = Elastic(stall_s=6.0, budget={"crash": 10, "stall": 10, "exception": 3})
    try:
        found = survives(
            train, 6 * faults + 12, hosts=hosts, faults=faults, seed=seed, elastic=elastic
        )
    finally:
        logger.removeHandler(said)
    wrong = [
        f"{struck.fault}: {' | '.join(line.splitlines()[0] for line in lines)}"
        for struck in found.struck
        if not told(struck.fault, lines := of_generation(struck.generation, said.lines))
    ]
    return found, wrong


def main() -> None:
    """Runs the campaign and prints one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="number of faults")
    parser.add_argument("--hosts", type=int, default=3, help="number of local hosts")
    parser.add_argument("--seed", type=int, default=0, help="seed of their kinds and places")
    options = parser.parse_args()
    start = time.perf_counter()
    found, wrong = campaign(options.faults, hosts=options.hosts, seed=options.seed)
    by_kind = Counter(struck.fault.kind for struck in found.struck)
    report(
        "a trainer with a store under faults",
        metric="from a fault to the next step",
        unit="s",
        values=[struck.recovery_s for struck in found.struck],
        medians={
            kind: round(
                statistics.median(s.recovery_s for s in found.struck if s.fault.kind == kind), 2
            )
            for kind in sorted(by_kind)
        },
        faults=dict(sorted(by_kind.items())),
        told=len(found.struck) - len(wrong),
        told_otherwise=wrong,
        hosts=options.hosts,
        generations=found.broken.generations,
        seed=options.seed,
        seconds=round(time.perf_counter() - start, 1),
    )


if __name__ == "__main__":
    main()
