# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import grain
import optax
from flax import nnx

from dovetail_checkpoint import Store
from dovetail_train import Trainer


def example(number, random):
    x = random.normal(size=8).astype("float32")
    return {"x": x, "y": x.sum(keepdims=True)}


def loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), error.size * 1.0


rows = grain.MapDataset.range(1000).seed(0).random_map(example).repeat().batch(64)
for steps in (20, 40):  # the second call goes on after step 20, model and data
    data, model = iter(rows.to_iter_dataset()), nnx.Linear(8, 1, rngs=nnx.Rngs(0))
    with Store("run") as store:
        Trainer(optax.adam(1e-2), loss).fit(model, data, steps=steps, store=store)
print("batches read:", data.get_state()["next_index"])
# prints: batches read: 40
