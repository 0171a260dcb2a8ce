# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives of products on 8 devices with automatic axes; prints them as JSON.

{case: {"plain": [...], "quant": [...], "error": ...}}, each entry a kind and its elements. A
collective in a loop is listed once, with the elements of all its turns. The error is that of the
value on the mesh against one device, over the largest.
"""

import functools
import json
import math
import re
import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail_quant.codes.codes import dequantize, quantize
from dovetail_quant.codes.layout import blocks, by_device
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.blocked import Blocked
from dovetail_quant.matmul.w8a8 import W8A8

MESH = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
INPUTS, OUTPUTS, ROWS = 1024, 4096, 3
PLACES = {"outputs": (None, "tensor"), "both": ("fsdp", "tensor")}
KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
CALL = re.compile(rf"= (.+?) ({KINDS})(?:-start)?\(")
X, W = (
    jax.random.normal(jax.random.key(i), shape)
    for i, shape in enumerate([(ROWS, INPUTS), (INPUTS, OUTPUTS)])
)


def collectives(program, turns=1):
    """[kind, elements] of each collective of a compiled program, in order."""
    found = []
    computation = ""
    for line in program.as_text().splitlines():
        if line and not line[0].isspace():
            computation = line
        if match := CALL.search(line):
            sizes = re.findall(r"\[([\d,]*)\]", match[1])
            elements = sum(math.prod(int(n) for n in size.split(",") if n) for size in sizes)
            found.append([match[2], elements * (1 if computation.startswith("ENTRY") else turns)])
    return sorted(found)


def sharding(*entries):
    return NamedSharding(MESH, PartitionSpec(*entries))


def placed(a, *entries):
    return jax.device_put(a, sharding(*entries))


@functools.cache
def prepared(product, spec):
    """The weights as the product holds them, and their values, on every device whole."""
    packed = product.prepare(quantize(W, spec))
    return packed, dequantize(product.codes(packed))


@functools.cache
def exact(way):
    return jax.jit(WAYS[way](lambda x, w: x @ w))


@functools.cache
def plain(place, way):
    w = jax.ShapeDtypeStruct(W.shape, W.dtype, sharding=sharding(*PLACES[place]))
    return collectives(exact(way).lower(X, w).compile())


def case(product, spec, place, way):
    inputs, outputs = PLACES[place]
    packed, values = prepared(product, spec)
    turns = blocks(jax.tree.map(lambda a: a[0], by_device(packed)[1]))[0]
    held = jax.tree.map(
        lambda a: placed(a, outputs, inputs if a.shape[1] % 2 == 0 else None), packed
    )
    program = jax.jit(WAYS[way](product)).lower(X, held).compile()
    want, got = exact(way)(X, values), program(X, held)
    return {
        "plain": plain(place, way),
        "quant": collectives(program, turns),
        "error": float(jnp.abs(got - want).max() / jnp.abs(want).max()),
    }


def gradient(product):
    return jax.grad(lambda x, w: (product(x, w) ** 2).sum())


INT8, INT4 = Spec(), Spec(weight="int4", group=32)
WAYS = {"forward": lambda product: product, "backward": gradient}
with jax.set_mesh(MESH):
    cases = {
        f"{spec.weight}, {place}, {name}": case(Blocked(), spec, place, name)
        for spec in (INT8, INT4)
        for place in PLACES
        for name in WAYS
    }
    rounded = Spec(weight="int4", act="int8")
    cases["W8A8, outputs, forward"] = case(W8A8(), rounded, "outputs", "forward")
json.dump(cases, sys.stdout)
