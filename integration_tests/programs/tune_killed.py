# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DPO over `with_reference`, to be killed at any moment: tune_killed.py FOLDER STEPS.

After every step it prints the number of steps made, and waits for a line of input.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from tune_losses import ROWS, batch, decoder

from dovetail_checkpoint import Store
from dovetail_train import Jsonl, Trainer
from dovetail_tune import dpo, with_reference

PART = 16  # rows of a batch
FIELDS = ("tokens", "targets", "mask", "segment_ids", "positions", "pair_ids")


class Batches:
    """The rows of the table, again in each epoch; its state is the number of batches."""

    def __init__(self) -> None:
        self.i, self.rows = 0, batch()

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        start = self.i * PART % ROWS
        self.i += 1
        return {name: self.rows[name][start : start + PART] for name in FIELDS}

    def get_state(self) -> dict[str, int]:
        return {"i": self.i}

    def set_state(self, state: dict[str, int]) -> None:
        self.i = state["i"]


class Gate:
    """A hook that waits for a line of input."""

    every = 1

    def __call__(self, trainer: Any, state: Any, step: int) -> dict[str, float]:
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        return {}


def run(folder: Path, *, steps: int, hooks: tuple[Any, ...] = ()) -> tuple[str, int]:
    """Returns a digest of every bit of the last state, and the rows that were scored."""
    data = with_reference(Batches(), decoder(None), folder / "reference")
    trainer = Trainer(optax.adamw(1e-2), dpo(), accumulate=2, ema=0.9)
    with Store(folder / "checkpoints") as store:
        result = trainer.fit(
            decoder(None),
            data,
            steps=steps,
            store=store,
            save_every=2,
            sinks=[Jsonl(folder / "metrics.jsonl")],
            hooks=hooks,
        )
    sums = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(result.state):
        value = jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        sums.update(jax.tree_util.keystr(path).encode() + np.asarray(value).tobytes())
    return sums.hexdigest(), data.counts()["computed"]


if __name__ == "__main__":
    run(Path(sys.argv[1]), steps=int(sys.argv[2]), hooks=(Gate(),))
