# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The losses on eight devices, tokens sharded: as on one, without gathering x. Prints "ok"."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs

P = PartitionSpec
M, D, V = 64, 8, 300
rng = np.random.default_rng(0)
x, w = rng.standard_normal((M, D), np.float32), rng.standard_normal((D, V), np.float32)
labels, where = rng.integers(0, V, M).astype(np.int32), (rng.random(M) < 0.7).astype(np.float32)
factors = rng.standard_normal((2, M)).astype(np.float32)


def loss(x, w, labels, where, factors):
    """Both operations, in several tiles of tokens and of columns."""
    ce = linear_cross_entropy(x, w, labels, where=where, smoothing=0.1, z_loss=0.01, budget=45000)
    logprob, entropy = linear_logprobs(x, w, labels, where=where > 0, budget=45000)
    per_token = jnp.sum(factors[0] * logprob + factors[1] * entropy)
    return ce.sum + 0.1 * per_token, (ce, logprob, entropy)


step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
alone = jax.tree.leaves(step(x, w, labels, where, factors))
forced_devices.stop_caching()


def same(found, message):
    for got, expected in zip(jax.tree.leaves(found), alone, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=message)


for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(kind, kind))
    for axes in ("data", ("data", "fsdp")):
        with jax.sharding.set_mesh(mesh):
            places = [P(axes), P(), P(axes), P(axes), P(None, axes)]
            arrays = [
                jax.device_put(a, NamedSharding(mesh, p))
                for a, p in zip((x, w, labels, where, factors), places, strict=True)
            ]
            compiled = step.lower(*arrays).compile()
            same(compiled(*arrays), f"{kind} {axes}")
            assert "all-gather" not in compiled.as_text(), f"{kind} {axes} gathers"
            ((_, _), (dx, _)) = compiled(*arrays)
            assert dx.sharding.is_equivalent_to(arrays[0].sharding, 2), dx.sharding

with jax.sharding.set_mesh(mesh):
    sharded = jax.device_put(w, NamedSharding(mesh, P(None, "fsdp")))
    message = ""
    try:
        linear_cross_entropy(arrays[0], sharded, arrays[2])
    except ValueError as error:
        message = str(error)
    assert "m and v sharded over 'fsdp'" in message, message
    assert "jax.sharding.reshard" in message, message
print("ok")
