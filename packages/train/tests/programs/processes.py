# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One of several processes that train together: processes.py ID COUNT PORT [DIR].

Each has its own rows of every batch. Trains to step 4, and, with a directory for a store, from
there to step 6. Process 0 writes, as JSON, the losses.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_train import OrbaxStore, Trainer, lm_loss, make_mesh
from dovetail_train.testing import TinyDecoder

ROWS, LENGTH = 8, 6


class Batches:
    """The rows of process `me` of `count`."""

    def __init__(self, me, count):
        self.i, self.me, self.count = 0, me, count

    def __iter__(self):
        return self

    def __next__(self):
        rng = np.random.default_rng(self.i)
        self.i += 1
        tokens = rng.integers(0, 32, (ROWS, LENGTH + 1), dtype=np.int32)
        mask = (rng.random((ROWS, LENGTH)) < 0.6).astype("f4")
        batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "mask": mask}
        each = ROWS // self.count
        return {name: x[self.me * each : (self.me + 1) * each] for name, x in batch.items()}

    def get_state(self):
        return self.i

    def set_state(self, state):
        self.i = state


class Losses(dict):
    def write(self, step, scalars):
        if "loss" in scalars:
            self[step] = scalars["loss"]


def run(me, count, *, directory, mesh):
    found = Losses()
    for steps in (4,) if directory is None else (4, 6):
        model = TinyDecoder(vocab_size=32, width=192, depth=1, rngs=nnx.Rngs(0))
        trainer = Trainer(optax.adamw(1e-3), lm_loss(), mesh=mesh, accumulate=2)
        store = None if directory is None else OrbaxStore(directory)
        trainer.fit(model, Batches(me, count), steps=steps, store=store, sinks=[found])
    return [found[step] for step in sorted(found)]


def main():
    me, count, port = (int(value) for value in sys.argv[1:4])
    directory = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    mesh = None
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=me)
        mesh = make_mesh(data=2, fsdp=2)
    losses = run(me, count, directory=directory, mesh=mesh)
    if me == 0:
        json.dump(losses, sys.stdout)


main()
