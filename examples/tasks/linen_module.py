# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax
from flax import linen as nn
from flax import nnx

from dovetail_train import Trainer

x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
batch = {"x": x, "y": x.sum(1, keepdims=True)}
module = nn.Sequential([nn.Dense(16), nn.tanh, nn.Dense(1)])
model = nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(x)


def loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), error.size * 1.0


trainer = Trainer(optax.adam(1e-2), loss)
result = trainer.fit(model, [batch] * 200, steps=200)
trained = trainer.model(result.state)
print(trained(x[:2]).ravel(), "for", batch["y"][:2].ravel())
print("learnt:", result.scalars["loss"] < 0.1)
# prints: learnt: True
