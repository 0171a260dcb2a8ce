# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer with every kind of optimizer state, on one device and on eight; prints JSON.

optimizers_sharded.py CASE ...      of one, eight, derived, zero
"""

import functools
import json
import sys

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_optim import compress, guard, muon, route, soap, state_shardings, wsd
from dovetail_train import Trainer, fsdp_shardings, make_mesh

WIDTH, STEPS = 64, 4
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
    places = fsdp_shardings(model, trainer.mesh, min_size=WIDTH * WIDTH)  # the trainer's is larger
    nnx.update(model, jax.device_put(nnx.state(model), places))
    rng, state = np.random.default_rng(0), trainer.init(model)
    x = rng.normal(size=(64, WIDTH)).astype("f4")
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
CASES = {
    "one": {},
    "eight": {"mesh": mesh},
    "derived": {"mesh": mesh, "opt_shardings": state_shardings},
    "zero": {"mesh": mesh, "opt_shardings": zero},
}
sys.stdout.write(json.dumps({name: train(**CASES[name]) for name in sys.argv[1:]}))
