# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Trains to step 9 on one device, and again moved after 3 and 6 steps: moved.py DIR.

Writes, as JSON, the losses of both, the first token of each step's batch, and the pieces of a
kernel.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

import forced_devices
from dovetail_train import OrbaxStore, Trainer, lm_loss, make_mesh
from dovetail_train.step.state import opt_shardings
from dovetail_train.testing import TinyDecoder

MESHES = ({"fsdp": 1}, {"data": 2, "fsdp": 2}, {"fsdp": 2})


class Batches:
    def __init__(self):
        self.i, self.given = 0, []

    def __iter__(self):
        return self

    def __next__(self):
        rng = np.random.default_rng(self.i)
        tokens = rng.integers(0, 32, (8, 7), dtype=np.int32)
        self.given.append((self.i, int(tokens[0, 0])))
        self.i += 1
        mask = (rng.random((8, 6)) < 0.6).astype("f4")
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "mask": mask}

    def get_state(self):
        return self.i

    def set_state(self, state):
        self.i = state


class Losses(dict):
    def write(self, step, scalars):
        if "loss" in scalars:
            self[step] = scalars["loss"]


def run(steps, *, axes, store=None):
    size = int(np.prod(list(axes.values())))
    mesh = make_mesh(**axes, devices=jax.devices()[:size])
    # Wide enough for the rule by shape to split what it multiplies.
    model = TinyDecoder(vocab_size=32, width=192, depth=1, rngs=nnx.Rngs(0))
    trainer = Trainer(optax.adamw(1e-3), lm_loss(), mesh=mesh, ema=0.9, opt_shardings=opt_shardings)
    data, losses = Batches(), Losses()
    result = trainer.fit(model, data, steps=steps, store=store, sinks=[losses])
    kernel = result.state.params["layers"][0]["up"]["kernel"]
    pieces = kernel.size // kernel.addressable_shards[0].data.size
    return losses, data.given, pieces


def main():
    losses, given, _ = run(9, axes=MESHES[0])
    forced_devices.stop_caching()
    moved, batches, pieces = Losses(), [], []
    for i, axes in enumerate(MESHES):
        store = OrbaxStore(Path(sys.argv[1]))
        part, taken, split = run(3 * (i + 1), axes=axes, store=store)
        moved |= part
        batches += taken
        pieces.append(split)
    json.dump(
        {
            "losses": [losses[i] for i in range(9)],
            "moved": [moved[i] for i in range(9)],
            "same_batches": batches == given,
            "pieces": pieces,
        },
        sys.stdout,
    )


main()
