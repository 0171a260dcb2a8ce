# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paged writing and attention with heads over eight devices, Explicit and Auto: prints "ok"."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail_kernels.paged.api import paged_attention
from dovetail_kernels.paged.write import paged_write
from dovetail_kernels.testing.paged import cases, check, inputs


def on(mesh, *spec):
    return NamedSharding(mesh, PartitionSpec(*spec))


def sharded(mesh):
    """`paged_attention` with its heads put on the mesh, compiled, and no collective in it."""

    def call(q, pages, *, sinks=None, **numbers):
        with jax.set_mesh(mesh):
            return apart(q, pages, sinks, numbers)

    def apart(q, pages, sinks, numbers):
        q = jax.device_put(q, on(mesh, None, "h"))
        one = jax.tree.leaves(pages)[0].shape[3] == 1
        pages = jax.device_put(pages, on(mesh) if one else on(mesh, None, None, None, "h"))
        sinks = None if sinks is None else jax.device_put(sinks, on(mesh, "h"))
        names = set(numbers) & {"window", "lse", "value_width"}
        options = {name: numbers.pop(name) for name in names}
        step = jax.jit(lambda q, p, s, n: paged_attention(q, p, sinks=s, **options, **n))
        compiled = step.lower(q, pages, sinks, numbers).compile()
        assert not re.search(r"all-gather|all-reduce|all-to-all|permute", compiled.as_text())
        out = compiled(q, pages, sinks, numbers)
        for array in jax.tree.leaves(out):
            assert array.sharding.is_equivalent_to(on(mesh, None, "h"), array.ndim), array.sharding
        return jax.tree.map(np.asarray, out)

    return call


chosen = {case.name: case for case in cases()}
explicit = jax.make_mesh((8,), ("h",), axis_types=(AxisType.Explicit,))
auto = jax.make_mesh((8,), ("h",), axis_types=(AxisType.Auto,))
case = dataclasses.replace(chosen["sinks"], window=130, heads=16, kv_heads=8)
check(sharded(explicit), case, grad=False)
check(sharded(explicit), dataclasses.replace(case, sinks=False, kv_heads=1), grad=False)
check(sharded(auto), case, grad=False)
latent = dataclasses.replace(case, kv_heads=1, value_width=5, sinks=False)
check(sharded(explicit), latent, grad=False)
for mesh in (explicit, auto):
    codes = dataclasses.replace(case, pages_dtype="int8", lse=True)
    check(sharded(mesh), codes, grad=False)

# Donated and sharded: in place, no collective, the same rows.
pages = np.random.default_rng(0).standard_normal((5, 2, 3, 8, 7)).astype(np.float32)
k, v = np.random.default_rng(1).standard_normal((2, 4, 8, 7)).astype(np.float32)
slots = jnp.array([14, 0, -1, 7], jnp.int32)
want = np.asarray(paged_write(*map(jnp.asarray, (pages, k, v)), slots=slots))
for mesh in (explicit, auto):
    with jax.set_mesh(mesh):
        rows = [jax.device_put(x, on(mesh, None, "h")) for x in (k, v)]
        given = jax.device_put(pages, on(mesh, None, None, None, "h"))
        write = jax.jit(paged_write, donate_argnums=0).lower(given, *rows, slots=slots).compile()
        assert write.memory_analysis().alias_size_in_bytes == pages.nbytes // 8
        assert write.memory_analysis().temp_size_in_bytes < pages.nbytes // 8
        assert not re.search(r"all-gather|all-reduce|all-to-all|permute", write.as_text())
        np.testing.assert_array_equal(write(given, *rows, slots=slots), want)

# What may not be sharded is named; two key heads are not split in eight.
given = inputs(chosen["decode"])
q, pages, *numbers = map(jnp.asarray, given[:5])
numbers = dict(zip(("page_table", "kv_lengths", "q_starts"), numbers, strict=True))
wide = jnp.concatenate([pages] * 8)
for name, arrays in {
    "s of pstnh|p of pstnh": (q, jax.device_put(wide, on(explicit, "h"))),
    "got n=2 in pstnh": (
        jax.device_put(jnp.concatenate([q] * 4, 1), on(explicit, None, "h")),
        pages,
    ),
}.items():
    message = ""
    try:
        with jax.set_mesh(explicit):
            paged_attention(*arrays, **numbers)
    except ValueError as error:
        message = str(error)
    assert re.search(name, message), message
print("ok")
