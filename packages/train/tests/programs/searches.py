# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the losses of L-BFGS on one device and on eight, and a shard of its memory."""

import json
import sys

import jax
import numpy as np
import optax
from flax import nnx

import forced_devices
from dovetail_train import Trainer, fsdp_shardings, make_mesh


def loss(model, batch, *, key):
    error = ((model(batch["x"]) - batch["y"]) ** 2).sum(-1)
    return (batch["mask"] * error).sum(), batch["mask"].sum()


def run(mesh):
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(32, 8)).astype("f4"), "y": rng.normal(size=(32, 3)).astype("f4")}
    batch["mask"] = (rng.random(32) < 0.6).astype("f4")
    model = nnx.Linear(8, 3, rngs=nnx.Rngs(0))
    nnx.update(model, jax.device_put(nnx.state(model), fsdp_shardings(model, mesh, min_size=8)))
    search = optax.scale_by_backtracking_linesearch(5, store_grad=True)
    tx = optax.lbfgs(memory_size=3, linesearch=search)
    trainer = Trainer(tx, loss, mesh=mesh, accumulate=2)
    state, losses = trainer.init(model), []
    for _ in range(4):
        state, metrics = trainer.step(state, batch)
        losses.append(metrics.read()["loss"])
    memory = state.opt[0].diff_params_memory["kernel"]
    return {"losses": losses, "shard": memory.addressable_shards[0].data.shape}


runs = {"one": run(make_mesh(devices=jax.devices()[:1]))}
forced_devices.stop_caching()
json.dump(runs | {"both": run(make_mesh(data=2, fsdp=4))}, sys.stdout)
