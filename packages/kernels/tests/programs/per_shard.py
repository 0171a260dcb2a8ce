# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What `per_shard` does on a mesh of eight devices: prints "ok", or fails."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_kernels.mesh import per_shard

MESH = jax.make_mesh((4, 2), ("data", "tensor"))
P = PartitionSpec


def total(x, w, scale):
    """Σ_b x[b] w scale in a loop that begins with fresh zeros, as kernels have."""
    rows = x * w[None] if scale is None else x * w[None] * scale
    return jax.lax.fori_loop(0, len(x), lambda i, t: t + rows[i], jnp.zeros(x.shape[1:]))


def sums(x, w, scale=None):
    """The sum over rows adds up over the shards of b."""
    return per_shard(
        "toy",
        total,
        (x, w, scale),
        ("bnh", "nh", ""),
        out="nh",
        may="bn",
        instead="Gather it first.",
        summed="b",
    )


def put(x, *spec):
    return jax.device_put(x, NamedSharding(MESH, P(*spec)))


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "not refused"


rng = np.random.default_rng(0)
x, w = rng.standard_normal((8, 4, 6)), rng.standard_normal((4, 6))
x, w = x.astype(np.float32), w.astype(np.float32)

with jax.sharding.set_mesh(MESH):
    for spec in [("data",), ("data", "tensor"), (("data", "tensor"),), (None, "tensor")]:
        shard = put(x, *spec)
        heads = spec[1] if len(spec) > 1 else None
        for call in (sums, jax.jit(sums)):
            out = call(shard, put(w, heads))
            np.testing.assert_allclose(out, (x * w).sum(0), rtol=1e-5)
            assert jax.typeof(out).sharding.spec == P(heads, None), jax.typeof(out)
        # A weight that is whole is split to fit, and its gradient is whole again.
        loss = jax.jit(jax.grad(lambda x, w: (sums(x, w) ** 2).sum(), argnums=(0, 1)))
        dx, dw = loss(shard, put(w))
        plain = lambda x, w: ((x * w).sum(0) ** 2).sum()  # noqa: E731
        ox, ow = jax.grad(plain, argnums=(0, 1))(jnp.asarray(x), jnp.asarray(w))
        np.testing.assert_allclose(dx, ox, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dw, ow, rtol=1e-4, atol=1e-4)
    # An axis of size 1 stays whole, a scalar and NumPy arrays may come along.
    one = sums(put(x, None, "tensor"), w[:1], jnp.float32(2))
    np.testing.assert_allclose(one, 2 * (x * w[:1]).sum(0), rtol=1e-5)
    assert refusal(lambda: sums(put(x, None, None, "tensor"), w)) == (
        "toy may be sharded along b, n of bnh nh, got h of bnh sharded over 'tensor'. Gather it "
        "first."
    )
    assert refusal(lambda: sums(put(x, None, "tensor"), put(w, "data"))) == (
        "toy needs n sharded alike in all its arguments, got 'tensor' and 'data'. Use "
        "jax.sharding.reshard on one of them."
    )
    assert refusal(lambda: sums(put(np.repeat(x, 2, 1), None, ("tensor", "data")), w)) == (
        "toy needs n of all its arguments divided by the 8 shards of ('tensor', 'data'), got n=4 "
        "in nh of shape (4, 6). Use jax.sharding.reshard over fewer devices."
    )

# Arrays that are here bring their own mesh.
np.testing.assert_allclose(sums(put(x, "data", "tensor"), w), (x * w).sum(0), rtol=1e-5)
print("ok")
