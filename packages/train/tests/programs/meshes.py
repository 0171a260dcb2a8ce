# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the losses and the bytes per device of one run on each of several meshes."""

import json
import sys

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_train import Trainer, fsdp_shardings, lm_loss, make_mesh
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


def run(name):
    sizes = dict(MESHES[name])
    mesh = make_mesh(**sizes | {"devices": jax.devices()[: sizes.pop("devices", 8)]})
    model = TinyDecoder(vocab_size=32, width=16, depth=1, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    nnx.update(model, jax.device_put(state, fsdp_shardings(model, mesh, min_size=64)))
    trainer = Trainer(optax.adamw(1e-2), lm_loss(chunk=8), mesh=mesh, accumulate=2)
    state, losses = trainer.init(model), []
    for batch in batches():
        state, metrics = trainer.step(state, batch)
        losses.append(metrics.read()["loss"])
    big = [x for x in jax.tree.leaves((state.params, state.opt)) if x.size >= 64]
    return {
        "losses": losses,
        "embedding": np.asarray(state.params["embed"]["embedding"]).tolist(),
        "bytes": sum(x.nbytes for x in big),
        "bytes_per_device": sum(x.addressable_shards[0].data.nbytes for x in big),
    }


json.dump({name: run(name) for name in sys.argv[1:]}, sys.stdout)
