# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the learning rates of five steps on eight devices; the third is skipped."""

import json
import sys

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import forced_devices
from dovetail_train import Trainer, make_mesh

SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 12, end_value=5e-4)
OPTIMIZERS = {
    "adamw": optax.adamw(SCHEDULE),
    "injected": optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE),
}


def loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(batch["x"].shape[0])


def rates(tx):
    trainer = Trainer(tx, loss, mesh=make_mesh(data=2, fsdp=4), accumulate=2)
    state, found = trainer.init(nnx.Linear(8, 4, rngs=nnx.Rngs(0))), []
    for step in range(5):
        x = np.random.default_rng(step).normal(size=(32, 8)).astype("f4")
        x[3] = np.nan if step == 2 else x[3]
        state, metrics = trainer.step(state, {"x": x})
        found.append(metrics.read()["learning_rate"])
    return found


forced_devices.stop_caching()
json.dump({name: rates(tx) for name, tx in OPTIMIZERS.items()}, sys.stdout)
