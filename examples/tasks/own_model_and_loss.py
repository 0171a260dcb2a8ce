# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax
from flax import nnx

from dovetail_train import Console, Metric, Trainer

rngs = nnx.Rngs(0)
layers = nnx.Linear(2, 32, rngs=rngs), nnx.tanh, nnx.Linear(32, 2, rngs=rngs)
model = nnx.Sequential(*layers)  # any nnx.Module


def loss(model, batch, *, key):  # each term: a sum, and the count that divides it
    logits, labels = model(batch["x"]), batch["y"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right, count = (logits.argmax(-1) == labels).sum(), labels.size * 1.0
    return {"entropy": (losses.sum(), count), "accuracy": Metric(right, count)}


x = np.random.default_rng(0).normal(size=(256, 2)).astype("float32")
batch = {"x": x, "y": (x[:, 0] * x[:, 1] > 0).astype("int32")}
trainer = Trainer(optax.adam(1e-2), loss)
result = trainer.fit(model, [batch] * 300, steps=300, sinks=[Console(every=100)])
print(f"accuracy {result.scalars['loss/accuracy']:.2f}")
# prints: accuracy 1.00
