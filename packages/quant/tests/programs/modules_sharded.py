# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantized modules on eight devices and on one, applied and loaded; prints findings as JSON."""

import json
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import forced_devices
from dovetail_quant import Spec, apply, calibrate, load, plan, save
from dovetail_quant.matmul.reference import Reference
from dovetail_quant.reports.compare import quantized_kernels

MESH = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
PLACES = {
    "embed": P("b", "a"),
    "linear": P("a", "b"),
    "general": P("a", "b", None),
    "einsum": P("b", None, "a"),
    "experts": P("b", None, "a"),
}


class Experts(nnx.Module):
    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (4, 16, 32)))
        self.ragged_dot = jax.lax.ragged_dot

    def __call__(self, x):
        sizes = jnp.array([3, 0, 5, 2], jnp.int32)
        return self.ragged_dot(x.reshape(-1, 16), self.kernel[...], sizes)


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(12, 32, rngs=rngs)
        self.linear = nnx.Linear(32, 64, rngs=rngs)
        self.general = nnx.LinearGeneral(64, (4, 8), rngs=rngs)
        self.einsum = nnx.Einsum("btnh,nhd->btd", (4, 8, 16), rngs=rngs)
        self.experts = Experts(rngs)

    def __call__(self, tokens):
        x = self.einsum(self.general(jnp.tanh(self.linear(self.embed(tokens)))))
        return self.embed.attend(self.experts(x))


TOKENS = jnp.arange(10).reshape(2, 5)


def shardings():
    """A state of the kernels' places."""
    flat = [
        (path, variable.replace(NamedSharding(MESH, PLACES[path[0]])))
        for path, variable in nnx.to_flat_state(nnx.state(Model(), nnx.Param))
        if path[-1] != "bias"
    ]
    return nnx.from_flat_state(flat)


def placed():
    """The model on the mesh; biases everywhere."""
    model = Model()
    places = dict(nnx.to_flat_state(shardings()))
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        where = places[path].get_value() if path in places else NamedSharding(MESH, P())
        variable.set_value(jax.device_put(variable.get_value(), where))
    return model


def cut(array):
    """[parts along each axis]."""
    shard = array.addressable_shards[0].data.shape
    return [a // b for a, b in zip(array.shape, shard, strict=True)]


call = jax.jit(lambda m: m(TOKENS))


def applied(model, spec, matmul="auto"):
    chosen = plan(model, [(("**", "embed"), spec)])
    if spec.method != "absmax":
        batch = [jax.random.randint(jax.random.key(0), (2, 5), 0, 12) for _ in range(12)]
        chosen = calibrate(model, chosen, batch, run=lambda m, b: m(b))
    return apply(model, chosen, matmul=matmul)


def compare(want, spec, matmul="auto"):
    many = applied(placed(), spec, matmul)
    found = np.asarray(call(many))
    with tempfile.TemporaryDirectory() as folder:
        save(many, folder)
        loaded = load(folder, nnx.eval_shape(Model), shardings=shardings(), matmul=matmul)
    again = np.asarray(call(loaded))
    kernels = {"applied": quantized_kernels(many), "loaded": quantized_kernels(loaded)}
    return {
        "error": float(np.abs(found - want).max() / np.abs(want).max()),
        "reloaded": float(np.abs(again - found).max()),
        "cut": {
            how: {
                path: cut(k.codes().qvalue if matmul != "auto" else k.prepared.values)
                for path, k in each.items()
            }
            for how, each in kernels.items()
        },
        "scales": {
            path: cut(k.codes().scale if matmul != "auto" else k.prepared.scales)
            for path, k in kernels["loaded"].items()
        },
    }


INT4 = Spec(weight="int4", group=8)
CASES = {
    "int8": (Spec(),),
    "int4": (INT4,),
    "whole": (INT4, Reference()),
    "gptq": (Spec(weight="int4", group=8, method="gptq"),),
}
wanted = {name: np.asarray(call(applied(Model(), *CASES[name]))) for name in sys.argv[1:]}
forced_devices.stop_caching()
found = {name: compare(want, *CASES[name]) for name, want in wanted.items()}
sys.stdout.write(json.dumps(found))
