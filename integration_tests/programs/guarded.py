# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer with the guard of dovetail-optim: guarded.py writes, as JSON, runs on eight devices.

The batch of step NAN holds a NaN; those of SPIKES have labels 100 times too large.
"""

import hashlib
import json
import sys

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_optim import Guard
from dovetail_train import Trainer, make_mesh

STEPS, NAN, SPIKES = 40, 22, (25, 33, 34)
BAD = [NAN, *SPIKES]


class Batches:
    """Random batches that depend on their number alone."""

    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        x = np.random.default_rng(self.i).normal(size=(16, 8)).astype("f4")
        y = np.sin(x).sum(1, keepdims=True)
        if self.i == NAN:
            x[3, 5] = np.nan
        if self.i in SPIKES:
            y *= 100
        self.i += 1
        return {"x": x, "y": y}

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


class Lines:
    """A sink that keeps losses and skipped steps."""

    def __init__(self):
        self.losses, self.skipped = {}, []

    def write(self, step, scalars):
        if "loss" in scalars:
            self.losses[step] = scalars["loss"]
        if scalars.get("skipped"):
            self.skipped.append(step)


class Digests:
    """A hook that keeps a digest of the parameters and the optimizer's state before each step."""

    every = 1

    def __init__(self):
        self.of = {}

    def __call__(self, trainer, state, step):
        self.of[step] = digest((state.params, state.opt))
        return {}


def digest(tree):
    leaves = (np.asarray(x).tobytes() for x in jax.tree.leaves(tree))
    return hashlib.sha256(b"".join(leaves)).hexdigest()


def perceptron():
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(8, 32, rngs=rngs), nnx.tanh, nnx.Linear(32, 1, rngs=rngs))


def squared_error(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), error.size * 1.0


def trainer(**options):
    return Trainer(optax.adam(1e-2), squared_error, guard=Guard(window=16), **options)


def run(*, store=None, hooks=(), stop=None, **options):
    """(losses and skipped steps, result)."""
    lines = Lines()
    result = trainer(**options).fit(
        perceptron(), Batches(), steps=STEPS, store=store, sinks=[lines], hooks=hooks, stop=stop
    )
    return lines, result


if __name__ == "__main__":
    meshes = {"one": None, "eight": make_mesh(data=2, fsdp=4)}
    runs = {name: run(mesh=mesh)[0] for name, mesh in meshes.items()}
    sys.stdout.write(
        json.dumps(
            {
                name: {"losses": list(lines.losses.values()), "skipped": lines.skipped}
                for name, lines in runs.items()
            }
        )
    )
