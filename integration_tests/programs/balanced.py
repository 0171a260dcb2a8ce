# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the selection biases after each of three updates: balanced.py FAMILY MESH...

A mesh is written as axes with sizes and the number of microbatches, "data=2,fsdp=4@1".
"""

import dataclasses
import functools
import json
import sys

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dovetail_models import (
    Experts,
    Groups,
    LatentAttention,
    Rope,
    deepseek_v3,
    init,
    mixtral,
    record_load,
    track_load,
    update_selection_bias,
)
from dovetail_train import Trainer, lm_loss, make_mesh

RATE, ROWS, LENGTH, VOCAB = 0.05, 16, 12, 31
SIZES = {"vocab_size": VOCAB, "embed": 16, "depth": 2, "max_length": LENGTH, "init_std": 0.3}


def _with_bias(config):
    """The configuration with a selection bias in each router."""
    layers = tuple(
        dataclasses.replace(la, mlp=dataclasses.replace(la.mlp, selection_bias=True))
        for la in config.layers
    )
    return dataclasses.replace(config, layers=layers)


BIASED = {
    "deepseek_v3": deepseek_v3(
        **SIZES, mlp=24, dense=0,
        attention=LatentAttention(
            heads=4, q_rank=None, kv_rank=8, nope_dim=4, rope_dim=4, v_dim=4, rope=Rope(theta=1e4)
        ),
        experts=Experts(
            count=8, top_k=2, hidden=8, score="sigmoid", selection_bias=True,
            groups=Groups(count=2, top_k=2, score="top2"),
        ),
    ),
    "mixtral": _with_bias(mixtral(**SIZES, heads=4, kv_heads=2, mlp=24, experts=8, top_k=2)),
}  # fmt: skip


def skewed(family, mesh=None):
    """A model in which two experts of each layer receive nearly every token."""
    model = track_load(init(BIASED[family], mesh=mesh, seed=0))
    for layer in model.layers:
        bias = layer.mlp.router.selection_bias
        bias.set_value(bias[...].at[jnp.array([1, 6])].set(1.0))
    return model


def rows(seed):
    """Rows of ragged lengths, so that microbatches differ in their number of tokens."""
    rng = np.random.default_rng(seed)
    inside = np.arange(LENGTH)[None] < rng.integers(4, LENGTH + 1, (ROWS, 1))
    tokens = rng.integers(0, VOCAB, (2, ROWS, LENGTH), np.int32)
    return {
        "tokens": tokens[0],
        "targets": tokens[1],
        "mask": inside.astype(np.float32),
        "segment_ids": inside.astype(np.int32),
    }


def trainer(**options):
    update = functools.partial(update_selection_bias, rate=RATE)
    return Trainer(optax.sgd(0.1), lm_loss(record=record_load), after_update=update, **options)


def biases(state):
    layers = state.rest["layers"].values()
    return np.stack([np.asarray(layer["mlp"]["router"]["selection_bias"]) for layer in layers])


@nnx.jit
def _load(model, tokens, segment_ids):
    *_, taps = model.features(tokens, segment_ids=segment_ids, taps=("router",))
    return taps["router"].load


def loads(model, batch):
    """Tokens per expert of each layer, [layers, experts]."""
    return np.asarray(_load(model, batch["tokens"], batch["segment_ids"]), np.float64)


def run(family, mesh=None, **options):
    """The biases after each of three updates; each ends with empty counts."""
    if mesh is not None:
        options["mesh"] = mesh
    training, moved = trainer(**options), []
    state = training.init(skewed(family, mesh))
    for i in range(3):
        state, _ = training.step(state, rows(i))
        moved.append(biases(state))
        for layer in state.rest["layers"].values():
            assert not np.asarray(layer["mlp"]["router"]["load"]).any()
    return np.stack(moved)


def main():
    family, *meshes = sys.argv[1:]
    moved = {}
    for text in meshes:
        axes, accumulate = text.split("@")
        sizes = {name: int(size) for name, size in (axis.split("=") for axis in axes.split(","))}
        mesh = make_mesh(**{"fsdp": 1, **sizes})
        moved[text] = run(family, mesh, accumulate=int(accumulate)).tolist()
    sys.stdout.write(json.dumps(moved))


if __name__ == "__main__":
    main()
