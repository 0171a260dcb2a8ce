# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A quantized decoder on eight devices and on one; prints what it found as JSON."""

import json
import sys

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType

import dovetail_models as models
from dovetail_quant import Spec, apply, explain, plan
from dovetail_quant.sites.kernel import Kernel

CONFIG = models.mixtral(
    vocab_size=48, embed=32, depth=1, heads=8, kv_heads=4, mlp=64, experts=4, top_k=2, head_dim=8
)
MESH = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
ONE, MANY = models.init(CONFIG, seed=0), models.init(CONFIG, mesh=MESH, seed=0)
TOKENS = np.random.default_rng(0).integers(0, 48, (4, 7), dtype=np.int32)


def pieces(array):
    """Into how many an array is cut."""
    return array.size // array.addressable_shards[0].data.size


def codes(model):
    """{path: pieces} of the codes of every kernel."""
    found = {}
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        value = variable.get_value()
        if isinstance(value, Kernel):
            found[".".join(map(str, path))] = pieces(value.prepared.values)
    return found


def compare(rules):
    """The largest difference of the logits, and how kernels and their codes are cut."""
    want = jax.jit(lambda m: m(TOKENS))(apply(ONE, plan(ONE, rules)))
    quantized = apply(MANY, plan(MANY, rules))
    with jax.set_mesh(MESH):
        logits = np.asarray(jax.jit(lambda m: m(TOKENS))(quantized))
    kept = codes(quantized)
    flat = {".".join(map(str, p)): v for p, v in nnx.to_flat_state(nnx.state(MANY))}
    return {
        "error": float(np.abs(logits - want).max() / np.abs(want).max()),
        "pieces": kept,
        "native": explain(quantized, rows=1)[0].choice.refused["native"],
        "kernels": {path: pieces(flat[path].get_value()) for path in kept},
    }


# Both in one model; each on every kind of module is in the suite of dovetail-quant.
BOTH = [("layers.*.attn.**", Spec()), (("**", "{embed,lm_head}"), Spec(weight="int4", group=8))]
sys.stdout.write(json.dumps(compare(BOTH)))
