# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the collectives of a step on meshes of eight devices: collectives.py MESH...

A mesh is written as axes with sizes, "data=2,fsdp=4"; all others have size 1.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dovetail_train import (
    Trainer,
    collectives,
    context_parallel,
    fsdp_shardings,
    lm_loss,
    make_mesh,
)
from dovetail_train.testing import TinyDecoder

TOKENS = np.zeros((16, 8), np.int32)


def four_heads(q, k, v, *, causal, positions, segment_ids):
    """Attention of four heads, split among the devices, for a decoder of one."""
    split = context_parallel(plain)
    sides = {"causal": causal, "positions": positions, "segment_ids": segment_ids}
    return split(*(x.reshape(*x.shape[:2], 4, -1) for x in (q, k, v)), **sides).reshape(q.shape)


def plain(q, k, v, *, causal, positions, segment_ids, sinks):
    seen = positions[:, :, None] >= positions[:, None, :]
    scores = jnp.einsum("bsnd,btnd->bnst", q, k)
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e9), axis=-1)
    return jnp.einsum("bnst,btnd->bsnd", weights, v)


def model_on(mesh, *, tensor):
    """A decoder whose head is split over tensor, and all else over fsdp."""
    model = TinyDecoder(vocab_size=32, width=16, depth=1, rngs=nnx.Rngs(0))
    state = jax.device_put(nnx.state(model), fsdp_shardings(model, mesh, min_size=1))
    nnx.update(model, state)
    if tensor:
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "tensor"))
        model.out.kernel[...] = jax.device_put(model.out.kernel[...], split)
    return model


def run(text):
    sizes = {name: int(size) for name, size in (part.split("=") for part in text.split(","))}
    mesh = make_mesh(**{"fsdp": 1} | sizes)
    loss = lm_loss(attention=four_heads)
    trainer = Trainer(optax.adamw(1e-3), loss, mesh=mesh)
    batch = {"tokens": TOKENS, "targets": TOKENS, "mask": np.ones(TOKENS.shape, np.float32)}
    program = trainer.program(model_on(mesh, tensor=sizes.get("tensor", 1) > 1), batch)
    return [[c.kind, c.result_bytes, c.groups] for c in collectives(program.compile())]


if __name__ == "__main__":
    json.dump({text: run(text) for text in sys.argv[1:]}, sys.stdout)
