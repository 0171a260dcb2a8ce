# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the descriptions of some optimizers and losses as one JSON list."""

import functools
import json
import sys

import jax
import numpy as np
import optax

from dovetail_train import lm_loss
from dovetail_train.resume.describe import describe


def loss(model, batch, *, key, names=frozenset({"x", "y", "z"}), z=0.5):
    return z * sum(model(batch[name]).sum() for name in names if name in {"x", "y", "w"}), 1.0


def matrices(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)


SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 5, 50)
THINGS = [
    optax.adamw(SCHEDULE, mask=matrices),
    optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-3)),
    optax.multi_transform({"a": optax.sgd(0.1), "b": optax.adam(SCHEDULE)}, matrices),
    optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE),
    optax.adafactor(1e-3),
    lm_loss(z=1e-4),
    functools.partial(loss, z=np.arange(6.0)),
    lambda model, batch, *, key: loss(model, batch, key=key, names={"q", "p"}),
]

if __name__ == "__main__":
    sys.stdout.write(json.dumps(list(map(describe, THINGS))))
