# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the losses and the bytes per device of one run on each of several meshes."""

import json
import sys

import jax
import numpy as np
import optax
from flax import nnx

import forced_devices
from dovetail_train import (
    Trainer,
    abstract_mesh,
    estimate,
    fsdp_shardings,
    lm_loss,
    make_mesh,
)
from dovetail_train.testing import TinyDecoder

MESHES = {
    "one": {"fsdp": 1, "devices": 1},
    "data": {"data": 8, "fsdp": 1},
    "fsdp": {"fsdp": 8},
    "both": {"data": 2, "fsdp": 4},
}


def batches():
    rng = np.random.default_rng(0)
    for _ in range(3):
        tokens = rng.integers(0, 32, (16, 7), dtype=np.int32)
        mask = (rng.random((16, 6)) < 0.6).astype("f4")
        yield {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "mask": mask}


def decoder():
    return TinyDecoder(vocab_size=32, width=16, depth=1, rngs=nnx.Rngs(0))


def planned_bytes(mesh):
    """Of the same state on the same mesh, neither of which is there."""
    absent = abstract_mesh(mesh.size, **mesh.shape)
    model = nnx.eval_shape(decoder)
    state, places = nnx.state(model), fsdp_shardings(model, absent, min_size=64)
    nnx.update(
        model,
        jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, places
        ),
    )
    trainer = Trainer(optax.adamw(1e-2), lm_loss(chunk=8), mesh=absent, accumulate=2, ema=0.9)
    return sum(estimate(trainer, model, next(batches()), device="cpu").state_bytes.values())


def run(name):
    sizes = dict(MESHES[name])
    mesh = make_mesh(**sizes | {"devices": jax.devices()[: sizes.pop("devices", 8)]})
    model = decoder()
    state = nnx.state(model)
    nnx.update(model, jax.device_put(state, fsdp_shardings(model, mesh, min_size=64)))
    trainer = Trainer(optax.adamw(1e-2), lm_loss(chunk=8), mesh=mesh, accumulate=2, ema=0.9)
    state, losses = trainer.init(model), []
    for batch in batches():
        state, metrics = trainer.step(state, batch)
        losses.append(metrics.read()["loss"])
    live = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    planned = planned_bytes(mesh)
    big = [x for x in jax.tree.leaves((state.params, state.opt)) if x.size >= 64]
    return {
        "losses": losses,
        "embedding": np.asarray(state.params["embed"]["embedding"]).tolist(),
        "live": live - 4,  # the number of the step
        "planned": planned,
        "bytes": sum(x.nbytes for x in big),
        "bytes_per_device": sum(x.addressable_shards[0].data.nbytes for x in big),
    }


one, *several = sys.argv[1:]
runs = {one: run(one)}
forced_devices.stop_caching()
json.dump(runs | {name: run(name) for name in several}, sys.stdout)
