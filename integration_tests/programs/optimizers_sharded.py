# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer on eight devices with every kind of optimizer state; prints what it found as JSON."""

import functools
import json
import sys

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_optim import compress, guard, muon, route, soap, state_shardings, wsd
from dovetail_train import Trainer, make_mesh

WIDTH, STEPS = 256, 4  # the least width whose kernels the trainer shards
RATE = wsd(1e-2, warmup=2, total=8, cooldown=3)


def tx(params):
    """Momenta, bases, codes, and the medians of a guard."""
    shardings = jax.tree.map(lambda p: p.sharding, params)
    muons = muon(RATE, exchange=shardings, ns=[(1.5, -0.5, 0.0)], dtype=np.float32)
    rules = [
        ("layers.0.kernel", muons),
        ("layers.1.kernel", soap(RATE, refresh=2)),
        ("**", compress(optax.adamw(RATE), block=32, shardings=shardings)),
    ]
    return guard(route(rules))


def loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), error.size * 1.0


def train(**options):
    """Losses by step, and into how many pieces the large arrays of the optimizer are cut."""
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(*(nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(3)))
    trainer = Trainer(tx, loss, **options)
    rng, state = np.random.default_rng(0), trainer.init(model)
    x = rng.normal(size=(512, WIDTH)).astype("f4")
    batch = {"x": x, "y": x @ rng.normal(size=(WIDTH, WIDTH)).astype("f4") / WIDTH**0.5}
    losses = []
    for _ in range(STEPS):
        state, metrics = trainer.step(state, batch)
        losses.append(float(metrics.scalars["loss"]))
    large = [x for x in jax.tree.leaves(state.opt) if x.size >= WIDTH * WIDTH]
    pieces = [x.size // x.addressable_shards[0].data.size for x in large]
    return {"losses": losses, "pieces": sorted(pieces)}


mesh = make_mesh(data=2, fsdp=4)
zero = functools.partial(state_shardings, zero="data")
found = {
    "one": train(),
    "eight": train(mesh=mesh),
    "derived": train(mesh=mesh, opt_shardings=state_shardings),
    "zero": train(mesh=mesh, opt_shardings=zero),
}
sys.stdout.write(json.dumps(found))
