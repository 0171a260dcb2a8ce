# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer's step on given devices. As a program: the same step on eight CPU devices.

Writes, as JSON, the bytes of the step's arguments on one device, and the collectives of the
compiled step.
"""

import json
import sys

import jax
import numpy as np
import optax

from dovetail_models import abstract, init, llama
from dovetail_train import Trainer, collectives, lm_loss, make_mesh

DEPTH = 3
CONFIG = llama(vocab_size=256, embed=64, depth=DEPTH, heads=8, kv_heads=4, mlp=128)
AXES = {"data": 1, "fsdp": -1, "tensor": 2}
SHAPE = (16, 32)


def trainer(mesh):
    return Trainer(optax.adamw(1e-3), lm_loss(), mesh=mesh)


def build(devices, *, scan=False):
    mesh = make_mesh(devices=devices, **AXES)
    tokens = jax.ShapeDtypeStruct(SHAPE, np.int32)
    model = abstract(CONFIG, mesh=mesh).configure(scan=scan)
    return trainer(mesh).program(model, {"tokens": tokens, "targets": tokens, "mask": tokens})


def scanned(devices):
    return build(devices, scan=True)


def main():
    program = build(jax.devices())
    state = trainer(program.mesh).init(init(CONFIG, mesh=program.mesh, seed=0))
    rows = {name: np.ones(SHAPE, np.int32) for name in program.args[1]}
    batch = {name: jax.device_put(x, program.args[1][name].sharding) for name, x in rows.items()}
    device = jax.devices()[0]
    shards = [
        shard.data.nbytes
        for x in jax.tree.leaves((state, batch))
        if isinstance(x, jax.Array)
        for shard in x.addressable_shards
        if shard.device == device
    ]
    listed = [(c.kind, c.result_bytes) for c in collectives(program.compile())]
    json.dump({"live_bytes": sum(shards), "collectives": listed}, sys.stdout)


if __name__ == "__main__":
    main()
