# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The named products on eight devices, Auto and Explicit: as on one. Prints "ok"."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_quant.codes.codes import quantize
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.choose import PRODUCTS

P = PartitionSpec
rng = np.random.default_rng(0)
x = rng.standard_normal((4, 64), np.float32)
dy = rng.standard_normal((4, 40), np.float32)
w = quantize(jnp.asarray(rng.standard_normal((64, 40), np.float32)), Spec(weight="int4", group=8))
whole = quantize(jnp.asarray(rng.standard_normal((64, 40), np.float32)), Spec())
# Where x, w, the scales of 8 groups, and y are.
PLACES = {
    "outputs": (P(), P(None, "i"), P(None, "i"), P(None, "i")),
    "inputs": (P(None, "j"), P("j"), P("j"), P()),
    "rows and outputs": (P("i"), P(None, "j"), P(None, "j"), P("i", "j")),
    "rows over the outputs' axis": (P("i"), P(None, "i"), P(None, "i"), P("i")),
}


@functools.partial(jax.jit, static_argnames="name")
def step(x, prepared, dy, name):
    y, pull = jax.vjp(lambda x: PRODUCTS[name](x, prepared), x)
    return y, pull(dy)[0]


def check(name, kind, where, codes, alone):
    mesh = jax.make_mesh((2, 4), ("i", "j"), axis_types=(kind, kind))
    of_x, of_w, of_scale, of_y = PLACES[where]
    of_scale = of_scale if codes.scale.shape[0] > 1 else P(None, *of_scale[1:])
    with jax.set_mesh(mesh):
        placed = jax.tree.map(
            lambda a: jax.device_put(a, of_w if a.shape == codes.qvalue.shape else of_scale), codes
        )
        prepared = jax.jit(PRODUCTS[name].prepare)(placed)
        back = jax.jit(PRODUCTS[name].codes)(prepared)
        same = jax.tree.map(lambda a, b: np.array_equal(a, b), back, codes)
        assert jax.tree.all(same), (name, kind, where)
        found = step(jax.device_put(x, of_x), prepared, jax.device_put(dy, of_y), name)
        for got, expected in zip(found, alone, strict=True):
            # Sums in another order: eps times 64 terms of size 1.
            message = f"{name} {kind} {where}"
            np.testing.assert_allclose(got, expected, 1e-5, 1e-4, err_msg=message)
        if kind == AxisType.Explicit:
            wanted = NamedSharding(mesh, of_y)
            assert found[0].sharding.is_equivalent_to(wanted, 2), (where, found[0].sharding)


assert len(jax.devices()) == 8
wanted = {
    name: [step(x, PRODUCTS[name].prepare(codes), dy, name) for codes in (w, whole)]
    for name in sys.argv[1:]
}
forced_devices.stop_caching()
for name, (of_groups, of_whole) in wanted.items():
    for kind in (AxisType.Auto, AxisType.Explicit):
        # Auto leaves all to XLA, whatever is where; Explicit is ours to place.
        for where in PLACES if kind == AxisType.Explicit else ("outputs", "inputs"):
            check(name, kind, where, w, of_groups)
        check(name, kind, "inputs", whole, of_whole)
print("ok")
