# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""quantized_matmul by the named implementations on four devices: as on one. Prints "ok"."""

import functools
import sys

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from dovetail_kernels.quantized.api import quantized_matmul
from dovetail_kernels.quantized.pack import pack_weights

P = PartitionSpec
rng = np.random.default_rng(0)
x = rng.standard_normal((4, 64), np.float32)
w = pack_weights(rng.standard_normal((64, 36), np.float32), bits=4, group_size=64, symmetric=False)
dy = rng.standard_normal((4, 36), np.float32)


@functools.partial(jax.jit, static_argnames="impl")
def step(x, w, dy, impl):
    y, pull = jax.vjp(lambda x: quantized_matmul(x, w, impl=impl), x)
    return y, pull(dy)[0]


PLACES = {
    "rows": (P("i"), P(), P("i")),
    "channels": (P(), P("i"), P(None, "i")),
    "both": (P("i"), P("j"), P("i", "j")),
}
for impl in sys.argv[1:]:
    alone = step(x, w, dy, impl)
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(kind, kind))
        for name, places in PLACES.items():
            with jax.set_mesh(mesh):
                found = step(*map(jax.device_put, (x, w, dy), places), impl)
            for got, expected in zip(found, alone, strict=True):
                message = f"{impl} {kind} {name}"
                np.testing.assert_allclose(got, expected, 1e-5, 1e-4, err_msg=message)
            if kind == AxisType.Explicit:
                wanted = jax.sharding.NamedSharding(mesh, places[2])
                assert found[0].sharding.is_equivalent_to(wanted, 2), found[0].sharding

with jax.set_mesh(mesh):
    message = ""
    try:
        quantized_matmul(jax.device_put(x, P(None, "i")), jax.device_put(w, P()))
    except ValueError as error:
        message = str(error)
assert "d of md sharded over 'i'" in message, message
assert "x along M and w along F" in message, message
print("ok")
