# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two steps of `Trainer.fit`, each with a save: fit_walk.py ROOT

Prints one JSON object: `entered`, the files of packages in which a function ran in the thread that
trains, and `both_ways`, the pairs of files of which each calls the other.
"""

import json
import os
import sys

import jax.numpy as jnp
import numpy as np
import optax
import walk
from flax import nnx

from dovetail_checkpoint import Store
from dovetail_train import Trainer

calls = set()


class Data:
    """Rows 0, 1, ... of random numbers."""

    def __init__(self):
        self.row = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.row += 1
        return {"x": np.random.default_rng(self.row).normal(size=(2, 3)).astype(np.float32)}

    def get_state(self):
        return {"row": self.row}

    def set_state(self, state):
        self.row = state["row"]


def loss(model, batch, *, key):
    del key
    return (model(batch["x"]) ** 2).sum(), jnp.float32(2)


def entered(frame, event, argument):
    walk.entered(frame, event, argument)
    file = frame.f_code.co_filename
    if event != "call" or file not in walk.ran:
        return
    while (frame := frame.f_back) and not walk.of_project(frame.f_code.co_filename):
        pass
    if frame:
        calls.add((frame.f_code.co_filename, file))


if __name__ == "__main__":
    trainer = Trainer(optax.adamw(1e-3), loss)
    model, store = nnx.Linear(3, 2, rngs=nnx.Rngs(0)), Store(sys.argv[1])
    sys.setprofile(entered)
    trainer.fit(model, Data(), steps=2, store=store, save_every=1)
    sys.setprofile(None)
    named = {file: os.path.relpath(file, walk.ROOT) for file in walk.ran}
    pairs = {tuple(sorted(pair)) for pair in calls if pair[0] != pair[1] and pair[::-1] in calls}
    both_ways = sorted([named.get(a, a), named.get(b, b)] for a, b in pairs)
    json.dump({"entered": sorted(named.values()), "both_ways": both_ways}, sys.stdout)
