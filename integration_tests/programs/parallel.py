# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the losses of 10 steps of a model on several meshes: parallel.py MODEL MESH...

A mesh is written as axes with sizes, "data=2,tensor=4"; "one" is a single device. ":gather" is the
method of context, "@4" the number of microbatches. "+explicit" at the end makes all axes Explicit,
for the trainer, the model and the batches.
"""

import json
import sys

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail_kernels import attention
from dovetail_models import Remat, init, llama, mixtral
from dovetail_optim import Guard
from dovetail_train import Trainer, context_parallel, lm_loss, make_mesh

STEPS, ROWS, LENGTH, VOCAB = 10, 16, 16, 48
SIZES = {"vocab_size": VOCAB, "embed": 32, "depth": 2, "heads": 8, "kv_heads": 4, "mlp": 48}


def config(kind):
    if kind == "mixtral":
        return mixtral(**SIZES, max_length=LENGTH, experts=8, top_k=2)
    return llama(**SIZES, max_length=LENGTH)


def batches():
    """Packed rows that count by 1 to 3; some targets masked, one row nearly all padding."""
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        first, by = rng.integers(0, VOCAB, (ROWS, 1)), rng.integers(1, 4, (ROWS, 1))
        tokens = ((first + by * np.arange(LENGTH + 1)) % VOCAB).astype(np.int32)
        segments = np.sort(rng.integers(1, 4, (ROWS, LENGTH)), axis=1).astype(np.int32)
        segments[0, 1:] = 0
        mask = ((rng.random((ROWS, LENGTH)) < 0.7) & (segments > 0)).astype("f4")
        yield {
            "tokens": tokens[:, :-1],
            "targets": tokens[:, 1:],
            "mask": mask,
            "segment_ids": segments,
        }


def logits(model, mesh, batch):
    """Of the model that the trainer returned, under the mesh that it was given."""
    if mesh is None:
        return model(batch["tokens"])
    with jax.set_mesh(mesh):
        return nnx.jit(lambda model, tokens: model(tokens))(model, batch["tokens"])


def run(kind, axes, *, method="all_to_all", accumulate=2, explicit=False):
    mesh, place = None, lambda batch: batch
    if axes != "one":
        sizes = {name: int(size) for name, size in (part.split("=") for part in axes.split(","))}
        mesh = make_mesh(**{"fsdp": 1} | sizes)
    if explicit:
        mesh = mesh.update(axis_types=(AxisType.Explicit,) * len(mesh.axis_names))
        rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp", "expert")))
        place = lambda batch: jax.device_put(batch, rows)  # noqa: E731
    model = init(config(kind), mesh=mesh, seed=0).configure(scan=True, remat=Remat())
    loss = lm_loss(
        attention=context_parallel(attention, method=method),
        balance=kind == "mixtral",
        z=1e-3,
        chunk=32,
    )
    weights = {"balance": 0.1} if kind == "mixtral" else {}
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    trainer = Trainer(
        tx, loss, mesh=mesh, weights=weights, accumulate=accumulate, guard=Guard(), ema=0.9
    )
    state, losses = trainer.init(model), []
    for batch in batches():
        state, metrics = trainer.step(state, place(batch))
        losses.append(metrics.read())
    kernel = state.params["layers"][0]["attn"]["q"]["kernel"]
    return {
        "losses": [scalars["loss"] for scalars in losses],
        "terms": losses[-1],
        "pieces": kernel.size // kernel.addressable_shards[0].data.size,
        "logits": np.asarray(logits(trainer.model(state), mesh, batch))[1, :3, :5].tolist(),
    }


if __name__ == "__main__":
    kind, *meshes = sys.argv[1:]
    found = {}
    for name in meshes:
        mesh, _, types = name.partition("+")
        mesh, _, accumulate = mesh.partition("@")
        axes, _, method = mesh.partition(":")
        options = {"method": method or "all_to_all", "accumulate": int(accumulate or 2)}
        options["explicit"] = types == "explicit"
        found[name] = run(kind, axes, **options)
        jax.clear_caches()
    json.dump(found, sys.stdout)
