# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A run that can be killed at any moment: python killed.py DIR STEPS DIGEST_FILE [gated].

gated: after every step it prints the number of steps made, and waits for a line of input.
"""

import hashlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dovetail_train import Jsonl, OrbaxStore, Trainer


class Batches:
    """Random batches that depend on their number alone."""

    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        rng = np.random.default_rng(self.i)
        self.i += 1
        x = rng.normal(size=(8, 6)).astype("f4")
        return {"x": x, "y": x[:, :2] ** 2, "mask": (rng.random((8, 2)) < 0.6).astype("f4")}

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


class Net(nnx.Module):
    """Parameters, statistics and a random stream: everything that a resume must bring back."""

    def __init__(self):
        rngs = nnx.Rngs(params=0, dropout=1)
        self.up = nnx.Linear(6, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.down = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(self.drop(nnx.relu(self.norm(self.up(x)))))


class BelowTheMean:
    """A guard that refuses losses above 1.2 times the mean of the accepted ones, from the fifth."""

    def begin(self):
        return {"total": jnp.zeros((), jnp.float32), "count": jnp.zeros((), jnp.int32)}

    def judge(self, history, *, grad_norm, loss):
        total, count = history["total"], history["count"]
        taken = (count < 4) | (loss * count <= 1.2 * total)
        after = {"total": total + loss, "count": count + 1}
        return taken, jax.tree.map(lambda a, b: jnp.where(taken, a, b), after, history)


class Gate:
    """A hook that waits for a line of input."""

    every = 1

    def __call__(self, trainer, state, step):
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        return {}


def loss(model, batch, *, key):
    noise = 0.01 * jax.random.normal(key, batch["y"].shape)
    error = (model(batch["x"]) - batch["y"] + noise) ** 2
    return (batch["mask"] * error).sum(), batch["mask"].sum()


def digest(state):
    """Of every bit of the state."""
    sums = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(state):
        data = jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        sums.update(jax.tree_util.keystr(path).encode() + np.asarray(data).tobytes())
    return sums.hexdigest()


def run(directory, *, steps, stop=None, hooks=(), save_every=2):
    tx = optax.adamw(optax.cosine_decay_schedule(1e-2, 50))
    trainer = Trainer(tx, loss, accumulate=2, ema=0.9, guard=BelowTheMean())
    store = OrbaxStore(Path(directory) / "checkpoints")
    sinks = [Jsonl(Path(directory) / "metrics.jsonl")]
    return trainer.fit(
        Net(), Batches(), steps=steps, store=store, save_every=save_every, sinks=sinks,
        hooks=hooks, stop=stop,
    )  # fmt: skip


if __name__ == "__main__":
    gates = [Gate()] if sys.argv[4:] == ["gated"] else []
    done = run(sys.argv[1], steps=int(sys.argv[2]), hooks=gates)
    Path(sys.argv[3]).write_text(digest(done.state))
