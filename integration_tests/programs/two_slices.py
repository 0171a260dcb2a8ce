# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the collectives of a step of a family on eight devices: two_slices.py FAMILY.

Two slices of four devices along data; fsdp and tensor lie within them.
"""

import json
import sys

import jax
import numpy as np
import optax

from dovetail_kernels import attention
from dovetail_models import abstract, llama, mixtral
from dovetail_optim import Guard
from dovetail_train import Trainer, collectives, context_parallel, lm_loss, make_mesh, slice_ids

SIZES = {"vocab_size": 48, "embed": 32, "depth": 1, "heads": 8, "kv_heads": 4, "mlp": 48}


def run(family):
    config = mixtral(**SIZES, experts=4, top_k=2) if family == "mixtral" else llama(**SIZES)
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    loss = lm_loss(attention=context_parallel(attention), balance=family == "mixtral")
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    trainer = Trainer(tx, loss, mesh=mesh, guard=Guard())
    tokens = jax.ShapeDtypeStruct((8, 16), np.int32)
    batch = {"tokens": tokens, "targets": tokens, "mask": tokens}
    program = trainer.program(abstract(config, mesh=mesh), batch)
    slices = slice_ids(mesh, dcn={"data": 2}).reshape(-1)
    ids = np.arange(8).reshape(2, 2, 2)  # data, fsdp, tensor
    rows = ids[:, :, 0].reshape(-1).tolist()
    assert slices[rows].tolist() == [0, 0, 1, 1]
    return [[c.kind, c.groups, c.crosses(slices)] for c in collectives(program.compile())]


if __name__ == "__main__":
    json.dump(run(sys.argv[1]), sys.stdout)
