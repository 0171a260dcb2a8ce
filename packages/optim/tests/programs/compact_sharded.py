# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed state and rounding on eight devices: the bits of one, and no traffic. Prints "ok"."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_optim.compressing import stream
from dovetail_optim.compressing.codec import fp8
from dovetail_optim.compressing.compress import compress
from dovetail_optim.compressing.master import split_master
from dovetail_optim.compressing.rounding import stochastic_round

stream._LEAST, stream._TURNS = 256, 1 << 20  # so that these small shards are streamed, with a rest
P = PartitionSpec
SPECS = {
    "w": P("data", "model"),
    "t": P(None, ("data", "model"), None),
    "odd": P("model"),
    "b": P(),
}
SIZES = {"w": (22, 192), "t": (3, 24, 40), "odd": (12, 37), "b": (19,)}
STEPS = 2


def trees(dtype):
    rng = np.random.default_rng(0)
    # Powers of two and a few bits, so that products are exact and no fused multiply-add differs.
    grid = {k: rng.integers(-64, 64, (STEPS + 1, *n)) / 64 for k, n in SIZES.items()}
    return [{k: jnp.asarray(v[i], dtype) for k, v in grid.items()} for i in range(STEPS + 1)]


def run(tx, first, *grads):
    state, params = tx.init(first), first
    for g in grads:
        updates, state = tx.update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def made(name, shardings):
    if name == "compress":
        tx = optax.sgd(0.5, momentum=0.5)
        return compress(tx, codecs=(("trace", fp8()),), block=16, shardings=shardings)
    if name == "round":
        return stochastic_round(optax.sgd(2.0**-10), seed=5)
    return split_master(optax.sgd(2.0**-10))


DTYPES = {"compress": jnp.float32, "round": jnp.bfloat16, "master": jnp.bfloat16}
wanted = {
    name: jax.jit(functools.partial(run, made(name, None)))(*trees(dtype))
    for name, dtype in DTYPES.items()
}
forced_devices.stop_caching()
for name, dtype in DTYPES.items():
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
        shardings = {k: NamedSharding(mesh, s) for k, s in SPECS.items()}
        with jax.sharding.set_mesh(mesh):
            given = [jax.device_put(t, shardings) for t in trees(dtype)]
            tx = made(name, shardings if kind == AxisType.Auto else None)
            program = jax.jit(functools.partial(run, tx)).lower(*given).compile()
            found = program(*given)
            for (path, a), b in zip(
                jax.tree_util.tree_leaves_with_path(found),
                jax.tree.leaves(wanted[name]),
                strict=True,
            ):
                at = f"{name} {kind} {jax.tree_util.keystr(path)}"
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=at)
            text = program.as_text()
            for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
                assert word not in text, (name, kind, word)

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
placed = jax.device_put(jnp.ones((16, 64)), NamedSharding(mesh, P(None, "data")))


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "not refused"


tx = compress(optax.adam(1e-3), block=16)
message = refusal(lambda: tx.init({"w": placed}))
assert "must be told how" in message, message
assert "got shardings=None" in message, message
assert "write shardings=jax.tree.map" in message, message
with jax.sharding.set_mesh(mesh):
    assert refusal(lambda: jax.jit(tx.init)({"w": placed})) == message
told = compress(optax.adam(1e-3), block=16, shardings={"w": placed.sharding})
message = refusal(lambda: told.init({"w": placed}))
assert "got block=16 and 'w' with 8 of 64 a shard; write block=8" in message, message
print("ok")
