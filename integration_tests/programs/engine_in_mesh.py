# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Engines of a loaded model, made outside and inside of `jax.set_mesh`; prints their ids."""

import json
import sys
from pathlib import Path

import jax
from jax.sharding import AxisType

import dovetail_models as models
from dovetail_infer import Engine, Sampling

SIZES = {"vocab_size": 56, "embed": 24, "depth": 2, "heads": 4, "kv_heads": 4, "mlp": 32}
ENGINE = {"page_size": 4, "max_rows": 2, "max_length": 32, "kv_bytes": 2**20, "invariant": True}
DIRECTORY = Path(sys.argv[1])


def ids(mesh):
    """Greedy tokens by a model on `mesh`, or on one device."""
    with Engine(models.load(DIRECTORY, mesh=mesh), **ENGINE) as engine:
        prompts = [[3, 1, 4], [1, 5, 9, 2, 6]]
        completions = engine.generate(prompts, Sampling(max_tokens=8, temperature=0))
    return [completion.tokens.tolist() for completion in completions]


models.save(models.init(models.llama(**SIZES), seed=0), DIRECTORY)
found = {"outside": ids(None)}
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(kind,) * 2)
    for given in (mesh, None):
        with jax.set_mesh(mesh):
            found[f"{kind.name}, {'placed' if given else 'whole'}"] = ids(given)
sys.stdout.write(json.dumps(found))
