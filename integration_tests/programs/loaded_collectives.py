# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs one program on CPU devices many times: loaded_collectives.py [loop] [around]

The smallest program that stops for ever when XLA:CPU loads it from a compilation cache. It needs
a collective inside a loop ("loop"), collectives of the code around it that do not depend on the
loop ("around"), and enough independent work for XLA to run both at a time. docs/cpu_meshes.md
says why.
"""

import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

DEVICES = jax.device_count()
MESH = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,))
SIZE, INDEPENDENT, TIMES = 64, 16, 300


def program(x):
    """Sums over devices in a loop of three; gathers of what does not depend on it."""
    results = [(x + i) @ (x - i) for i in range(INDEPENDENT)]
    if "around" in sys.argv:
        results += [jax.lax.all_gather(y @ y, "x") for y in results[::4]]
    if "loop" in sys.argv:
        total, _ = jax.lax.scan(lambda y, _: (jax.lax.psum(jnp.sin(y @ y), "x"), None), x, length=3)
        results.append(total)
    return results


rows = PartitionSpec("x")
step = jax.jit(jax.shard_map(program, mesh=MESH, in_specs=rows, out_specs=rows, check_vma=False))
for _ in range(TIMES):
    jax.block_until_ready(step(jnp.ones((SIZE * DEVICES, SIZE))))
