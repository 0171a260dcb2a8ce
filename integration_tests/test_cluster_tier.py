# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer on three hosts, with a local tier in front of a checkpoint store: a host dies."""

import os
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_checkpoint import Store
from dovetail_cluster import Cluster, LocalTier
from dovetail_train import Trainer

pytestmark = pytest.mark.thorough

STEPS, EVERY, STORE_EVERY = 12, 2, 6
LIMIT_S = 300.0


class Data:
    """Batches by number: each rank has its rows of the global batch."""

    def __init__(self, rank):
        self.at, self._rank = 0, rank

    def __iter__(self):
        return self

    def __next__(self):
        rng = np.random.default_rng(self.at)
        self.at += 1
        x = rng.normal(size=(6, 4)).astype(np.float32)
        rows = slice(2 * self._rank, 2 * self._rank + 2)
        return {"x": x[rows], "y": (x @ np.arange(4, dtype=np.float32))[rows]}

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


class Tier(LocalTier):
    """Notes each restored step. Waits once after step 10, if the folder has a file `wait`."""

    def __init__(self, ctx, store, folder):
        super().__init__(ctx, store, store_every=STORE_EVERY)
        self._ctx, self._path = ctx, folder

    def restore(self, **targets):
        restored = super().restore(**targets)
        step = None if restored is None else restored[0]
        with open(os.path.join(self._path, "restored"), "a") as file:
            file.write(f"{self._ctx.generation} {self._ctx.rank} {step}\n")
        return restored

    def save(self, step, *, metrics=None, **items):
        super().save(step, metrics=metrics, **items)
        waits = os.path.exists(os.path.join(self._path, "wait"))
        if step == 10 and self._ctx.generation == 0 and waits:
            self._settle()
            self._store.wait()  # for step 6: a kill earlier would take it, and rightly
            Path(self._path, f"waits{self._ctx.rank}").touch()
            while True:
                time.sleep(0.05)


def loss(model, batch, *, key):
    """Sum of squares, and the number of rows."""
    del key
    error = model(batch["x"])[:, 0] - batch["y"]
    return jnp.sum(error**2), jnp.float32(error.size)


def train(ctx, folder):
    """Trains a linear model. Returns its loss and kernel, and the steps of the store."""
    trainer = Trainer(optax.adam(0.1), loss, mesh=ctx.mesh(data=-1))
    with Store(os.path.join(folder, "store")) as store, Tier(ctx, store, folder) as tier:
        model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
        options = {"store": tier, "save_every": EVERY, "stop": ctx.stop, "sinks": [ctx.progress]}
        result = trainer.fit(model, Data(ctx.rank), steps=STEPS, **options)
        saved = [step.step for step in store.steps()]
    kernel = np.asarray(jax.device_get(result.state.params)["kernel"][...])
    return result.scalars["loss"], kernel.tobytes(), saved


@pytest.mark.thorough("it kills processes")
@pytest.mark.capability("a trainer loses no more than its local interval when a host dies")
def test_a_host_that_dies_between_two_saves_of_the_store_costs_one_local_interval(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    (broken / "wait").touch()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
    with Cluster.local(hosts=3) as cluster:
        expected = cluster.run(train, str(whole))
        results = []
        thread = threading.Thread(target=lambda: results.append(cluster.run(train, str(broken))))
        thread.start()
        end = time.monotonic() + LIMIT_S
        while len([*broken.glob("waits*")]) < 3 and thread.is_alive():
            assert time.monotonic() < end
            time.sleep(0.02)
        cluster.host(1).kill_daemon()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    (result,) = results
    assert result.generations == 2
    # The store has step 6. All three ranks go on at 10.
    lines = (broken / "restored").read_text().splitlines()
    assert sorted(lines) == [*(f"0 {r} None" for r in range(3)), *(f"1 {r} 10" for r in range(3))]
    assert result.values == expected.values  # to the last bit
    assert [values[2] for values in result.values] == [[6, 12]] * 3
