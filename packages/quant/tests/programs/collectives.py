# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives of products on 8 devices with automatic axes; prints them as JSON.

{case: {"plain": [...], "quant": [...], "error": ...}}, each entry a kind and its elements. A
collective in a loop is listed once, with the elements of all its turns. The error is that of the
value on the mesh against one device, over the largest.
"""

import json
import math
import re
import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail_quant.codes import dequantize, quantize
from dovetail_quant.layout import blocks, by_device
from dovetail_quant.matmul.blocked import Blocked
from dovetail_quant.matmul.w8a8 import W8A8
from dovetail_quant.spec import Spec

MESH = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
INPUTS, OUTPUTS, ROWS = 1024, 4096, 3
PLACES = {"outputs": (None, "tensor"), "both": ("fsdp", "tensor")}
KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
CALL = re.compile(rf"= (.+?) ({KINDS})(?:-start)?\(")
X, W = (
    jax.random.normal(jax.random.key(i), shape)
    for i, shape in enumerate([(ROWS, INPUTS), (INPUTS, OUTPUTS)])
)


def collectives(function, w, turns=1):
    """[kind, elements] of each collective of the compiled function(X, w), in order."""
    found = []
    computation = ""
    for line in jax.jit(function).lower(X, w).compile().as_text().splitlines():
        if line and not line[0].isspace():
            computation = line
        if match := CALL.search(line):
            sizes = re.findall(r"\[([\d,]*)\]", match[1])
            elements = sum(math.prod(int(n) for n in size.split(",") if n) for size in sizes)
            found.append([match[2], elements * (1 if computation.startswith("ENTRY") else turns)])
    return sorted(found)


def placed(a, *entries):
    return jax.device_put(a, NamedSharding(MESH, PartitionSpec(*entries)))


def case(product, spec, place, way):
    inputs, outputs = PLACES[place]
    packed = product.prepare(quantize(W, spec))
    turns = blocks(jax.tree.map(lambda a: a[0], by_device(packed)[1]))[0]
    held = jax.tree.map(
        lambda a: placed(a, outputs, inputs if a.shape[1] % 2 == 0 else None), packed
    )
    exact = way(lambda x, w: x @ w)
    want, got = exact(X, dequantize(product.codes(packed))), jax.jit(way(product))(X, held)
    return {
        "plain": collectives(exact, placed(W, inputs, outputs)),
        "quant": collectives(way(product), held, turns),
        "error": float(jnp.abs(got - want).max() / jnp.abs(want).max()),
    }


def gradient(product):
    return jax.grad(lambda x, w: (product(x, w) ** 2).sum())


INT8, INT4 = Spec(), Spec(weight="int4", group=32)
WAYS = {"forward": lambda product: product, "backward": gradient}
with jax.set_mesh(MESH):
    cases = {
        f"{spec.weight}, {place}, {name}": case(Blocked(), spec, place, WAYS[name])
        for spec in (INT8, INT4)
        for place in PLACES
        for name in WAYS
    }
    rounded = Spec(weight="int4", act="int8")
    cases["W8A8, outputs, forward"] = case(W8A8(), rounded, "outputs", WAYS["forward"])
json.dump(cases, sys.stdout)
