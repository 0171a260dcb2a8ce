# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""quantized_matmul by the named implementations on four devices: as on one. Prints "ok".

Its collectives on an Auto mesh are those of the product of floats.
"""

import functools
import math
import re
import sys

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

import forced_devices
from dovetail_kernels.quantized.api import quantized_matmul
from dovetail_kernels.quantized.layout import unpack_weights
from dovetail_kernels.quantized.pack import pack_weights

P = PartitionSpec
rng = np.random.default_rng(0)
x = rng.standard_normal((4, 64), np.float32)
floats = rng.standard_normal((64, 36), np.float32)
w, symmetric = (pack_weights(floats, bits=4, group_size=64, symmetric=s) for s in (False, True))
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
# "scaled" refuses zero points of float32 rows.
weights = {impl: symmetric if impl == "scaled" else w for impl in sys.argv[1:]}
wanted = {impl: step(x, weights[impl], dy, impl) for impl in weights}
reference = step(x, w, dy, "reference")[0] if "native" in sys.argv else None
large = rng.standard_normal((128, 16384), np.float32)  # several blocks for both implementations
packed = {bits: pack_weights(large, bits=bits, group_size=128) for bits in (8, 4)}
exact = {bits: np.asarray(unpack_weights(codes), np.float64) for bits, codes in packed.items()}
forced_devices.stop_caching()

for impl, alone in wanted.items():
    for kind in (AxisType.Auto, AxisType.Explicit)[impl == "native" :]:  # refused on Auto axes
        mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(kind, kind))
        for name, places in PLACES.items():
            with jax.set_mesh(mesh):
                found = step(*map(jax.device_put, (x, weights[impl], dy), places), impl)
            for got, expected in zip(found, alone, strict=True):
                message = f"{impl} {kind} {name}"
                np.testing.assert_allclose(got, expected, 1e-5, 1e-4, err_msg=message)
            if kind == AxisType.Explicit:
                wanted = jax.sharding.NamedSharding(mesh, places[2])
                assert found[0].sharding.is_equivalent_to(wanted, 2), found[0].sharding

KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def collectives(program):
    """Kind and elements of each collective of a compiled program."""
    results = re.findall(rf"= (.+?) ({KINDS})(?:-start)?\(", program.as_text())
    sizes = [re.findall(r"\[([\d,]*)\]", shapes) for shapes, _ in results]
    counts = [sum(math.prod(map(int, filter(None, s.split(",")))) for s in ss) for ss in sizes]
    return sorted(zip((kind for _, kind in results), counts, strict=True))


def gradient(product):
    return jax.grad(lambda x, w: (product(x, w) ** 2).sum())


def compiled(function, *arrays):
    return jax.jit(function).lower(*arrays).compile()


x_large = rng.standard_normal((3, 128), np.float32)
auto = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
WAYS = {P(("j", "i")): lambda product: product, P("i"): gradient}
for bits in (8, 4):
    codes, y = packed[bits], x_large @ exact[bits]
    expected = {P(("j", "i")): y, P("i"): 2 * y @ exact[bits].T}
    for places, way in WAYS.items():
        with jax.set_mesh(auto):
            held, whole = jax.device_put(codes, places), jax.device_put(large.T, places)
            plain = collectives(compiled(way(lambda x, w: x @ w.T), x_large, whole))
            for impl in set(sys.argv[1:]) - {"native"}:
                product = functools.partial(quantized_matmul, impl=impl)
                program = compiled(way(product), x_large, held)
                ours, message = collectives(program), f"{impl} {bits} {places}"
                assert [kind for kind, _ in ours] == [kind for kind, _ in plain], (message, ours)
                # Sums of the gradient over four bits are two halves.
                pairs = zip(ours, plain, strict=True)
                assert all(n <= 2 * m for (_, n), (_, m) in pairs), (message, ours, plain)
                error = abs(program(x_large, held) - expected[places]).max()
                assert error <= 1e-5 * abs(expected[places]).max(), message  # 16384 float32 terms

if "native" in sys.argv:
    with jax.set_mesh(auto):
        message = ""
        try:
            quantized_matmul(x, w, impl="native")
        except ValueError as error:
            message = str(error)
        choice = quantized_matmul(x, w)
    assert "XLA gathers all weights for its call" in message, message
    assert "Auto axes of 4 devices" in message, message
    np.testing.assert_allclose(choice, reference, 1e-5, 1e-4)

with jax.set_mesh(mesh):
    message = ""
    try:
        quantized_matmul(jax.device_put(x, P(None, "i")), jax.device_put(w, P()))
    except ValueError as error:
        message = str(error)
assert "d of md sharded over 'i'" in message, message
assert "x along M and w along F" in message, message
print("ok")
