# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, contrastive training of one model on several meshes: embedding.py MODEL MESH...

A mesh is written as axes with sizes, "data=2,fsdp=4"; "one" is a single device. "@4" is the number
of chunks.
"""

import json
import sys

import jax
import numpy as np
import optax

import forced_devices
from dovetail_models import bert, init, llama, pool, vit
from dovetail_train import Trainer, collectives, make_mesh
from dovetail_tune import info_nce, mean_pooled

STEPS, ROWS, LENGTH, VOCAB, WIDTH = 4, 48, 24, 40, 16
SIZES = {"embed": WIDTH, "depth": 1, "heads": 2, "mlp": 24}
TEXT = {"vocab_size": VOCAB, "max_length": LENGTH}
CONFIGS = {
    "bert": bert(**SIZES, **TEXT, pooler=False),
    "llama": llama(**SIZES, **TEXT, kv_heads=1),
    "vit": vit(**SIZES, image_size=8, patch=2),
}


def texts():
    """A query, a text that shares two thirds of its tokens, and another text; some padded."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, VOCAB, (ROWS, LENGTH), dtype=np.int32)
    kept = rng.random((ROWS // 3, LENGTH)) < 2 / 3
    tokens[1::3] = np.where(kept, tokens[0::3], tokens[1::3])
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, ROWS)
    segment_ids = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    return {"tokens": tokens * segment_ids, "segment_ids": segment_ids}


def images():
    """An image, the same with noise, and another image."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 8, 8, 3)).astype(np.float32)
    x[1::3] = x[0::3] + x[1::3] / 2
    return {"images": x}


def pooled_image(model, batch):
    x = model.features(batch["images"])
    return pool(x, mask=np.ones(x.shape[:2], np.int32), kind="mean", normalize=True)


def run(kind, axes, chunks):
    mesh = make_mesh(devices=jax.devices()[:1])
    if axes != "one":
        sizes = {name: int(size) for name, size in (part.split("=") for part in axes.split(","))}
        mesh = make_mesh(**{"fsdp": 1} | sizes)
    encode = pooled_image if kind == "vit" else mean_pooled()
    loss = info_nce(encode=encode, rows=3, symmetric=True, chunks=chunks)
    trainer = Trainer(optax.adam(1e-2), loss, mesh=mesh)
    batch = images() if kind == "vit" else texts()
    model = init(CONFIGS[kind], mesh=mesh, seed=0)
    traffic = []
    if axes == "data=8":
        compiled = trainer.program(model, batch).compile()
        traffic = [[c.kind, c.result_bytes] for c in collectives(compiled)]
    state, steps = trainer.init(model), []
    for _ in range(STEPS):
        state, metrics = trainer.step(state, batch)
        steps.append(metrics.read())
    return {"steps": steps, "traffic": traffic}


def main():
    kind, *meshes = sys.argv[1:]
    results = {}
    for name in meshes:
        axes, _, chunks = name.partition("@")
        if axes != "one":
            forced_devices.stop_caching()
        results[name] = run(kind, axes, int(chunks or 1))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
