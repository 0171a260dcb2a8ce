# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Saves a bundle that is sharded over the devices of this process, loads it, and prints results.

Usage: python sharded_model.py BUNDLE INPUT.npy, with XLA_FLAGS for the number of devices
"""

import json
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dovetail_serve import BundleError, Tensor, export, load

path, x = sys.argv[1], np.load(sys.argv[2])
devices = jax.devices()
mesh = Mesh(np.array(devices).reshape(2, 2), ("a", "b"))
random = np.random.default_rng(0)
up, down = random.normal(size=(6, 8)), random.normal(size=(8, 5))
params = {
    "up": jax.device_put(
        up.astype("float32"), NamedSharding(mesh, PartitionSpec(None, ("a", "b")))
    ),
    "down": jax.device_put(down.astype("float32"), NamedSharding(mesh, PartitionSpec("a"))),
    "bias": jax.device_put(np.float32(0.5), NamedSharding(mesh, PartitionSpec())),
}


def fn(p, *, x):
    return {"y": jax.numpy.tanh(x @ p["up"]) @ p["down"] + p["bias"]}


export(
    fn,
    params,
    inputs={"x": Tensor(("batch", 6), "float32")},
    example={"x": random.normal(size=(3, 6)).astype("float32")},
    platforms=["cpu"],
    batch_sizes=(1, 4),
).save(path)
model = load(path)
try:
    load(path, devices=devices[:3])
    refused = ""
except BundleError as error:
    refused = str(error)
shards = {
    name: [list(shard.data.shape) for shard in array.addressable_shards]
    for name, array in model._weights.items()
}
print(
    json.dumps(
        {
            "y": model(x=x)["y"].tolist(),
            # Inputs of another device go by way of the host.
            "placed": model(x=jax.device_put(x[:4], devices[3]))["y"].tolist(),
            "verified": model.verify(),
            "devices": len(model.devices),
            "shards": shards,
            "refused": refused,
        }
    )
)
