# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes with a hook that ends the run on the second one alone.

    python hooks.py PROCESS PROCESSES PORT

Process 0 writes [steps, interrupted] of the runs as JSON.
"""

import json
import sys

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_train import StopRun, Trainer, make_mesh


def loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), 4.0


def fit(hooks):
    batches = [{"x": np.full((2, 3), 1.0 + i, np.float32)} for i in range(5)]
    trainer = Trainer(optax.sgd(1e-3), loss, mesh=make_mesh())
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with jax.transfer_guard("disallow"):  # as people set it to find slow loops
        result = trainer.fit(model, batches, steps=5, hooks=hooks)
    return [result.step, result.interrupted]


def main():
    me, count, port = (int(value) for value in sys.argv[1:4])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=me)

    def silent(trainer, state, step):
        pass

    def ends(trainer, state, step):
        return StopRun({"a": 1.0}) if (me, step) == (1, 3) else {"a": 1.0}

    silent.every = ends.every = 1
    runs = [fit([silent]), fit([silent, ends]), fit([silent] if me == 0 else [])]
    if me == 0:
        json.dump(runs, sys.stdout)


main()
