# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax
from flax import nnx

from dovetail_train import Eval, StopRun, Trainer

train, test = np.random.default_rng(0).normal(size=(2, 24, 17)).astype("float32")


def loss(model, batch, *, key):  # noise has nothing to learn, so it is overfitted
    error = (model(batch["rows"][:, :16]) - batch["rows"][:, 16:]) ** 2
    return error.sum(), error.size * 1.0


def stop_early(trainer, state, step):  # after three evaluations without a new best
    scalars = evaluation(trainer, state, step)
    losses.append(scalars["eval/loss"])
    return scalars if min(losses) in losses[-3:] else StopRun(scalars)


losses, stop_early.every = [], 10
evaluation = Eval([{"rows": test}], every=10, metrics={"loss": loss})
data, model = [{"rows": train}] * 900, nnx.Linear(16, 1, rngs=nnx.Rngs(0))
result = Trainer(optax.adam(1e-2), loss).fit(model, data, steps=900, hooks=[stop_early])
print("stopped at step", result.step, [round(value, 2) for value in losses])
# prints: stopped at step 80 [3.06, 2.83, 2.57, 2.42, 2.40, 2.43, 2.46, 2.46]
