# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, log-likelihoods of the same requests on one device and the meshes argv[1:]."""

import json
import sys

import jax
import numpy as np
from flax import nnx

import forced_devices
from dovetail_train import fsdp_shardings, make_mesh
from dovetail_train.eval.likelihood import loglikelihood, rolling_loglikelihood
from dovetail_train.testing import TinyDecoder

MESHES = {
    "one": {"fsdp": 1, "devices": 1},
    "data": {"data": 8, "fsdp": 1},
    "fsdp": {"fsdp": 8},
    "both": {"data": 2, "fsdp": 4},
}


def run(name):
    sizes = dict(MESHES[name])
    mesh = make_mesh(**sizes | {"devices": jax.devices()[: sizes.pop("devices", 8)]})
    model = TinyDecoder(vocab_size=32, width=16, depth=1, rngs=nnx.Rngs(0))
    shardings = fsdp_shardings(model, mesh, min_size=64)
    nnx.update(model, jax.device_put(nnx.state(model), shardings))
    rng = np.random.default_rng(0)
    requests = [tuple(rng.integers(0, 32, n) for n in rng.integers(1, 14, 2)) for _ in range(19)]
    found = loglikelihood(model, requests, length=24, chunk=32)
    refused = ""
    try:
        loglikelihood(model, requests, length=24, rows=6)
    except ValueError as error:
        refused = str(error)
    kernel = model.out.kernel[...]
    rolling = rolling_loglikelihood(model, [a for a, _ in requests], length=5, prefix=1)
    return {
        "logps": found.logps.tolist(),
        "greedy": found.greedy.tolist(),
        "rolling": rolling.logps.tolist(),
        "refused": refused,
        "parts": kernel.nbytes // kernel.addressable_shards[0].data.nbytes,
    }


runs = {"one": run("one")}
forced_devices.stop_caching()
json.dump(runs | {name: run(name) for name in sys.argv[1:]}, sys.stdout)
