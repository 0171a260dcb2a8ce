# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the losses of a preference run by mesh: pairs.py [ID COUNT PORT].

Without arguments on one device and on eight; else as one of several processes with their own rows.
Row 2i of a batch is chosen, row 2i + 1 rejected, so a torn pair changes every loss.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import forced_devices
from dovetail_train import Trainer, make_mesh

ROWS, WIDTH, STEPS = 32, 6, 4


def loss(model, batch, *, key):
    score = model(batch["x"])[:, 0]
    losses = -jax.nn.log_sigmoid(score[0::2] - score[1::2])
    return losses.sum(), jnp.float32(losses.size)


loss.rows = 2


def run(mesh, *, accumulate, me=0, count=1):
    trainer = Trainer(optax.adam(0.1), loss, mesh=mesh, accumulate=accumulate)
    state, losses = trainer.init(nnx.Linear(WIDTH, 1, rngs=nnx.Rngs(0))), []
    rng, each = np.random.default_rng(0), ROWS // count
    for _ in range(STEPS):
        x = rng.normal(size=(ROWS, WIDTH)).astype("f4")
        x[0::2] += 1  # so that there is something to learn
        state, metrics = trainer.step(state, {"x": x[me * each : (me + 1) * each]})
        losses.append(metrics.read()["loss"])
    return losses


def main():
    if len(sys.argv) > 1:
        me, count, port = (int(value) for value in sys.argv[1:4])
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=me)
        losses = {"processes": run(make_mesh(data=2, fsdp=2), accumulate=2, me=me, count=count)}
    else:
        me, one = 0, make_mesh(devices=jax.devices()[:1])
        losses = {f"one/{n}": run(one, accumulate=n) for n in (1, 4)}
        forced_devices.stop_caching()
        losses["data"] = run(make_mesh(data=8, fsdp=1), accumulate=2)
        losses["both"] = run(make_mesh(data=2, fsdp=4), accumulate=1)
    if me == 0:
        json.dump(losses, sys.stdout)


main()
