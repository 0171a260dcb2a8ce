# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""quantized_matmul by one implementation on four devices: as on one. Prints "ok"."""

import sys

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from dovetail_kernels.quantized.api import quantized_matmul
from dovetail_kernels.quantized.pack import pack

P = PartitionSpec
impl = sys.argv[1]
rng = np.random.default_rng(0)
x = rng.standard_normal((4, 64), np.float32)
w = pack(rng.standard_normal((64, 36), np.float32), bits=4, group_size=64, symmetric=False)
dy = rng.standard_normal((4, 36), np.float32)


@jax.jit
def step(x, w, dy):
    y, pull = jax.vjp(lambda x: quantized_matmul(x, w, impl=impl), x)
    return y, pull(dy)[0]


alone = step(x, w, dy)
places = {
    "rows": (P("i"), P(), P("i")),
    "channels": (P(), P("i"), P(None, "i")),
    "both": (P("i"), P("j"), P("i", "j")),
}
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(kind, kind))
    for name, (of_x, of_w, of_y) in places.items():
        with jax.set_mesh(mesh):
            y, dx = step(jax.device_put(x, of_x), jax.device_put(w, of_w), jax.device_put(dy, of_y))
        for got, expected in zip((y, dx), alone, strict=True):
            np.testing.assert_allclose(got, expected, 1e-5, 1e-4, err_msg=f"{kind} {name}")
        explicit = kind == AxisType.Explicit
        assert not explicit or jax.typeof(y).sharding.spec == P(*of_y, *[None] * (2 - len(of_y)))

with jax.set_mesh(mesh):
    message = ""
    try:
        quantized_matmul(jax.device_put(x, P(None, "i")), jax.device_put(w, P()), impl=impl)
    except ValueError as error:
        message = str(error)
assert "d of md sharded over 'i'" in message, message

print("ok")
