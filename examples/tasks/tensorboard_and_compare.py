# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax
from flax import nnx

from dovetail_runs import page, read_metrics
from dovetail_train import Jsonl, TensorBoard, Trainer

x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
batch = {"x": x, "y": x.sum(1, keepdims=True)}


def loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), error.size * 1.0


last = {}
for rate in (0.01, 0.1):
    sinks = [TensorBoard(f"logs/{rate}"), Jsonl(f"{rate}.jsonl")]
    trainer, model = Trainer(optax.adam(rate), loss), nnx.Linear(8, 1, rngs=nnx.Rngs(0))
    result = trainer.fit(model, [batch] * 100, steps=100, sinks=sinks)
    last[rate] = result.scalars["loss"]
page({f"rate {x}": read_metrics(f"{x}.jsonl") for x in last}).write("report.html")
print("the lowest loss has rate", min(last, key=last.get))
# prints: the lowest loss has rate 0.1
