# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Time to load a bundle with 8 batch sizes: with the sidecar of `precompile`, and by compiling.

Each load is a fresh process, timed from after the imports until all programs are ready. The model
is an encoder of a transformer with 6 layers. Results are compared bit for bit first.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_serve import Tensor, export, load
from dovetail_serve.loading.precompile import precompile
from measure import report, rounds

REPEATS = 5
LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY = 6, 256, 4, 32, 1000
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def encoder(params, *, tokens):
    x = params["embed"][tokens]
    for layer in params["layers"]:
        q, k, v = (
            (normed(x) @ layer[name]).reshape(*x.shape[:2], HEADS, -1) for name in ("q", "k", "v")
        )
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * (WIDTH // HEADS) ** -0.5
        attended = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
        x = x + attended.reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
    return {"pooled": normed(x).mean(1)}


def normed(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def save(path):
    generator = np.random.default_rng(0)

    def matrix(*shape):
        return (generator.normal(size=shape) * shape[0] ** -0.5).astype("float32")

    layers = [
        {name: matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
        | {"up": matrix(WIDTH, 4 * WIDTH), "down": matrix(4 * WIDTH, WIDTH)}
        for _ in range(LAYERS)
    ]
    export(
        encoder,
        {"embed": matrix(VOCABULARY, WIDTH), "layers": layers},
        inputs={"tokens": Tensor(("batch", LENGTH), "int32")},
        example={"tokens": generator.integers(0, VOCABULARY, (3, LENGTH)).astype("int32")},
        platforms=("cpu",),
        batch_sizes=BATCH_SIZES,
    ).save(path)


def child(path, sidecar):
    """Prints the seconds until all programs are ready, and a digest of their results."""
    jax.local_devices()  # the start of the backend is no part of a load
    wall, cpu = time.perf_counter(), time.process_time()
    model = load(path, verify="none", sidecar=sidecar)
    for rows in BATCH_SIZES:
        model.compile(rows)
    seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    results = hashlib.sha256()
    inputs, _ = model.golden()
    for rows in BATCH_SIZES:
        tokens = np.resize(inputs["tokens"], (rows, LENGTH))
        results.update(model.execute({"tokens": tokens}, rows)["pooled"].tobytes())
    print(json.dumps(seconds | {"results": results.hexdigest()}))


def fresh(path, cache, sidecar):
    variables = {
        "XDG_CACHE_HOME": str(cache),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    line = [sys.executable, __file__, str(path), "sidecar" if sidecar else "compile"]
    return json.loads(subprocess.check_output(line, env=os.environ | variables))


def main():
    with tempfile.TemporaryDirectory() as name:
        path, cache = Path(name, "encoder"), Path(name, "cache")
        save(path)
        programs = precompile(path, cache=cache / "dovetail" / "serve")
        ours = functools.partial(fresh, path, cache, sidecar=True)
        peer = functools.partial(fresh, path, cache, sidecar=False)
        loads = rounds({"ours": ours, "peer": peer, "again": peer}, repeats=REPEATS)
    if len({load["results"] for load in (*loads["ours"], *loads["peer"])}) != 1:
        raise RuntimeError("results from the sidecar must have the bits of the compiled programs")
    for metric in ("wall_s", "cpu_s"):
        values = {name: [load[metric] for load in found] for name, found in loads.items()}
        report(
            f"load of {len(BATCH_SIZES)} batch sizes, {LAYERS} layers of width {WIDTH}",
            metric=metric,
            unit="s",
            values=values["ours"],
            peer="jax",
            peer_values=values["peer"],
            peer_again=values["again"],
            sidecar_bytes=sum(program.bytes for program in programs),
            limit_ratio=0.1,
        )


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2] == "sidecar") if sys.argv[1:] else main()
