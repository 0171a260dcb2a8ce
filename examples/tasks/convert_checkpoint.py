# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from dovetail_checkpoint import explain, load, rename, transpose

random = np.random.default_rng(0)  # a file as torch writes it, of an nn.Sequential
shapes = {"0.weight": (32, 8), "0.bias": (32,), "2.weight": (1, 32), "2.bias": (1,)}
tensors = {name: random.normal(size=s).astype("f4") for name, s in shapes.items()}
save_file(tensors, "torch.safetensors")

rngs = nnx.Rngs(0)
layers = nnx.Linear(8, 32, rngs=rngs), nnx.relu, nnx.Linear(32, 1, rngs=rngs)
model = nnx.Sequential(*layers)
rules = [
    transpose("*.weight", (1, 0)),
    rename("*.weight", "layers.*.kernel"),
    rename("*.bias", "layers.*.bias"),
]
wanted = nnx.state(model)
print(explain("torch.safetensors", wanted, rules=rules))  # before a byte is read
nnx.update(model, load("torch.safetensors", wanted, rules=rules))
print("loaded:", np.array_equal(model.layers[0].kernel, tensors["0.weight"].T))
# prints: loaded: True
