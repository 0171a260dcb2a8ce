# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Muon on eight devices as on one, and what it communicates, argv[1] "auto" or "explicit".

Prints "ok", or fails.
"""

import collections
import contextlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_optim.matrix.muon import muon

KIND = sys.argv[1]
TYPES = (AxisType.Auto if KIND == "auto" else AxisType.Explicit,) * 3
MESH = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=TYPES)
P = PartitionSpec
COLLECTIVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
ONE_STEP = ((1.5, -0.5, 0.0),)
STACKED = "l i o -> l, i, o"
MATRIX = [
    ("q", "l i h d -> l h, i, d"),
    ("out", "h d o -> , h d, o"),
    ("head", "i o -> , i, o"),
    ("**", STACKED),
]
SHAPES = {
    "up": ((6, 8, 12), P(None, "fsdp", "tensor")),  # six matrices for the devices: filled up
    "down": ((6, 12, 8), P(None, "tensor", "fsdp")),
    "gate": ((5, 8, 12), P(None, "fsdp", "tensor")),  # in one stack with "up"
    "alike": ((6, 8, 12), P(None, None, ("tensor", "data"))),  # of its shape, sharded otherwise
    "experts": ((8, 8, 12), P(("data", "fsdp", "tensor"))),  # at home already
    "half": ((4, 8, 12), P("data", None, "tensor")),
    "same": ((3, 4, 6), P()),
    "q": ((3, 8, 4, 5), P(None, "fsdp", "tensor")),  # two axes of the batch, the second sharded
    "out": ((4, 6, 10), P("tensor", "fsdp")),  # two axes of a side, both sharded
    "head": ((8, 12), P("fsdp")),
}
SHARDINGS = {k: NamedSharding(MESH, spec) for k, (_, spec) in SHAPES.items()}


def draw(seed):
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(s).astype(np.float32) for k, (s, _) in SHAPES.items()}


def put(tree):
    return {k: jax.device_put(x, SHARDINGS[k]) for k, x in tree.items()}


def three_steps(tx, place):
    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = place(draw(0))
    state = tx.init(params)
    if KIND == "auto":  # where zeros are on one device
        state = state._replace(momentum=place(state.momentum))
    for seed in (1, 2, 3):
        params, state = step(params, state, place(draw(seed)))
    return params


def as_on_one():
    """In float32, without steep polynomials, so that only the order of sums differs."""
    rows = [(1.5, -0.5, 0.0)] * 2  # few, as the compiler's time is the test's
    settings = {"matrix": MATRIX, "ns": rows, "dtype": jnp.float32, "weight_decay": 0.1}
    alone = three_steps(muon(0.1, **settings), lambda tree: jax.tree.map(jnp.asarray, tree))
    forced_devices.stop_caching()

    def same(tx, in_context):
        with jax.sharding.set_mesh(MESH) if in_context else contextlib.nullcontext():
            found = three_steps(tx, put)
        for k, x in found.items():
            np.testing.assert_allclose(x, alone[k], atol=1e-5, err_msg=k)
            if KIND == "explicit":
                assert x.sharding.is_equivalent_to(SHARDINGS[k], x.ndim), (k, x.sharding)

    same(muon(0.1, **settings), in_context=True)
    given = "auto" if KIND == "explicit" else SHARDINGS
    same(muon(0.1, exchange=given, chunk_bytes=1000, **settings), in_context=False)


def collectives(text):
    return collections.Counter(re.findall(rf" ({COLLECTIVES})(?:-start)?\(", text))


def lowered(tx, names):
    """A step on these arrays alone, with the mesh in context."""
    arrays = {
        k: jax.ShapeDtypeStruct(SHAPES[k][0], jnp.float32, sharding=SHARDINGS[k]) for k in names
    }
    with jax.sharding.set_mesh(MESH):
        state = jax.eval_shape(tx.init, arrays)._replace(momentum=arrays)

        def step(params, state, grads):
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        return jax.jit(step).lower(arrays, state, arrays)


def communicates():
    def count(*names, **settings):
        known = "auto" if KIND == "explicit" else {k: SHARDINGS[k] for k in names}
        tx = muon(0.1, matrix=STACKED, exchange=known, ns=ONE_STEP, **settings)
        step = lowered(tx, names)
        return collectives(step.compile().as_text()), step.as_text()

    def moved(text, operation):
        return re.findall(rf'"stablehlo.{operation}"\(.*-> tensor<(.*)>', text)

    # One way and back, for all in the stack; "data", which shards neither, takes its half of it.
    found, text = count("up", "gate")
    assert found == {"all-to-all": 2, "all-gather": 1}, found
    # 11 matrices are filled up to 16: on a device 8 of 4 by 6, which is four times two whole ones.
    assert moved(text, "all_to_all") == ["8x4x6xbf16"] * 2
    assert moved(text, "all_gather") == ["16x4x6xbf16"]
    found, text = count("up", "gate", chunk_bytes=1)
    assert found == {"all-to-all": 2, "all-gather": 1}, found
    assert moved(text, "all_to_all") == ["4x4x6xbf16"] * 2
    assert count("half")[0] == {"all-to-all": 2, "all-gather": 1}
    assert count("alike")[0] == {"all-to-all": 2, "all-gather": 1}
    assert not count("experts")[0]
    assert count("same")[0] == {"all-gather": 1}

    if KIND == "auto":  # by the compiler: an all-to-all for each mesh axis each way
        tx = muon(0.1, matrix=STACKED, ns=ONE_STEP)
        found = collectives(lowered(tx, ["up", "gate"]).compile().as_text())
        assert found == {"all-to-all": 4, "all-gather": 1}, found


as_on_one()
communicates()
print("ok")
