# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The layer of a mixture of experts, and the elementwise operations, on eight devices as on one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_kernels.grouped.api import grouped_matmul
from dovetail_kernels.grouped.permutation import permute, unpermute
from dovetail_kernels.grouped.routing import ExpertGroups, route_tokens
from dovetail_kernels.layers.glu import glu
from dovetail_kernels.layers.norm import layer_norm, rms_norm
from dovetail_kernels.layers.rope import rope

TOKENS, D, F, E, K = 16, 8, 6, 12, 3


def mixture(x, w, logits, impl):
    groups = ExpertGroups(count=4, k=2)
    weights, experts = route_tokens(logits, k=K, score="sigmoid", groups=groups)
    rows, sizes, plan = permute(x, experts, count=E)
    return unpermute(grouped_matmul(rows, w, sizes, impl=impl), plan, weights)


def elementwise(x, gate, scale, positions):
    normed, stream = rms_norm(x, scale, eps=1e-6, residual=gate)
    turned = rope(normed, positions, theta=100.0, interleaved=True)
    return glu(turned, layer_norm(stream, scale, None, eps=1e-6))


def with_gradients(function, *args):
    return jax.value_and_grad(lambda *a: (function(*a) ** 2).sum(), (0, 1, 2))(*args)


def agree(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        # Float32 sums of at most 400 terms in another order: 400 eps is 5e-5 of the largest.
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-5 * float(abs(other).max()))


def refused(call, *words):
    message = ""
    try:
        call()
    except ValueError as error:
        message = str(error)
    assert all(word in message for word in words), (words, message)


def refusals(put, x, w, logits):
    experts, sizes = put(jnp.zeros((TOKENS, K), jnp.int32)), put(jnp.full(4, 4))
    refused(lambda: permute(put(x, "b"), experts, count=E), "permute", "m of md", "'b'", "reshard")
    refused(lambda: grouped_matmul(put(x, "b"), put(w[:4]), sizes), "m of md", "'b'", "reshard")
    refused(lambda: grouped_matmul(put(x), put(w[:4], "b"), sizes), "e of edf", "jax.shard_map")
    refused(lambda: route_tokens(put(logits, None, "b"), k=2), "E sharded over 'b'", "reshard")
    weights, chosen = route_tokens(put(logits, "b"), k=2)
    assert jax.typeof(weights).sharding.spec[0] == "b"
    assert jax.typeof(chosen).sharding.spec[0] == "b"


def main():
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    x, w, logits = draw(TOKENS, D), draw(E, D, F), draw(TOKENS, E)
    q, gate, scale = draw(8, 4, 4, 6), draw(8, 4, 4, 6), draw(6)
    positions = jnp.arange(32, dtype=jnp.int32).reshape(8, 4)
    layer = jax.jit(
        lambda x, w, logits, impl: with_gradients(lambda *a: mixture(*a, impl), x, w, logits),
        static_argnums=3,
    )
    pointwise = jax.jit(
        lambda q, gate, scale, at: with_gradients(lambda *a: elementwise(*a, at), q, gate, scale)
    )
    expected = layer(x, w, logits, "reference")
    expected_pointwise = pointwise(q, gate, scale, positions)
    forced_devices.stop_caching()
    both = ((None, "b"), (None, "b", "a"), ())
    rows = (("b",), (None, None, "a"), ("b",))
    for kind in (AxisType.Explicit, AxisType.Auto):
        mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(kind, kind))

        def put(array, *parts, mesh=mesh):
            return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*parts)))

        def check(parts, put=put):
            arrays = [put(a, *p) for a, p in zip((x, w, logits), parts, strict=True)]
            agree(layer(*arrays, "tiles"), expected)

        with jax.set_mesh(mesh):
            check(both if kind is AxisType.Explicit else rows)
            arrays = [put(q, "b", None, "a"), put(gate, "b", None, "a"), put(scale)]
            agree(pointwise(*arrays, put(positions, "b")), expected_pointwise)
            if kind is AxisType.Explicit:
                refusals(put, x, w, logits)
    print("ok")


main()
