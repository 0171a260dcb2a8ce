# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import jax
import numpy as np
from flax import nnx

from dovetail_serve import Tensor, export, load

rngs = nnx.Rngs(0)
layers = nnx.Linear(4, 32, rngs=rngs), nnx.relu, nnx.Linear(32, 3, rngs=rngs)
graph, state = nnx.split(nnx.Sequential(*layers))


def classify(state, *, x):
    return {"p": jax.nn.softmax(nnx.merge(graph, state)(x))}


x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
inputs = {"x": Tensor(("batch", 4), "float32")}
platforms = ("cpu", "cuda", "tpu")
bundle = export(classify, state, inputs=inputs, example={"x": x}, platforms=platforms)
bundle.save("classifier")  # there, only jax and dovetail_serve are needed
model = load("classifier")  # every byte is verified, and the example computed again
print("equal:", np.allclose(model(x=x)["p"], classify(state, x=x)["p"], atol=1e-6))
# prints: equal: True
