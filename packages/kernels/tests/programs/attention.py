# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention on a mesh of eight devices, argv[1] "auto" or "explicit": prints "ok", or fails."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_kernels.attention.api import attention

KIND = sys.argv[1]
TYPES = (AxisType.Auto if KIND == "auto" else AxisType.Explicit,) * 2
MESH = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=TYPES)
P = PartitionSpec
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


def put(x, *spec):
    return jax.device_put(x, NamedSharding(MESH, P(*spec)))


def gradients(q, k, v, bias, ids, lengths, mask, dout):
    """Everything that depends on a row, and a bias that all share."""

    def loss(q, k, v, bias):
        given = {"segment_ids": ids, "kv_lengths": lengths, "mask": mask, "bias": bias}
        out, stats = attention(q, k, v, causal=True, stats=True, **given)
        return (out * dout).sum() + jnp.where(stats.lse > -jnp.inf, stats.lse, 0).sum()

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(q, k, v, bias)


def plain(q, k, v, dout):
    loss = lambda q, k, v: (attention(q, k, v, causal=True) * dout).sum()  # noqa: E731
    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "not refused"


rng = np.random.default_rng(0)
t = 144
q, dout = rng.standard_normal((2, 8, t, 4, 8)).astype(np.float32)
k, v = rng.standard_normal((2, 8, t, 2, 8)).astype(np.float32)
ids = np.sort(rng.integers(0, 4, (8, t)), axis=1).astype(np.int32)
lengths = rng.integers(0, t + 1, 8).astype(np.int32)
bias = rng.standard_normal((1, 4, t, t)).astype(np.float32)
mask = rng.random((8, 1, 1, t)) < 0.8
alone = jax.jit(gradients)(q, k, v, bias, ids, lengths, mask, dout)

alone_one = jax.jit(attention)(q, k[:, :, :1], v[:, :, :1])
forced_devices.stop_caching()
heads = ("data", None, "tensor", None)
with jax.sharding.set_mesh(MESH):
    shards = [put(x, *heads) for x in (q, k, v)]
    rest = [put(x, "data") for x in (ids, lengths, mask)] + [put(dout, *heads)]
    given = [*shards, put(bias, None, "tensor"), *rest]
    compiled = jax.jit(gradients).lower(*given).compile()
    jax.tree.map(close, compiled(*given), alone)
    # The loss is summed over all; under Auto rows agree on how many blocks to visit.
    assert not re.findall(r"(all-gather|all-to-all|collective-permute)\(", compiled.as_text())

    text = jax.jit(plain).lower(*shards, rest[-1]).compile().as_text()
    assert not re.findall(f"({'|'.join(COLLECTIVES)})\\(", text)

    if KIND == "explicit":
        forward = jax.jit(attention)
        out = forward(*shards)
        assert jax.typeof(out).sharding.spec == P("data", None, "tensor", None)
        # Two kv heads that are whole are split to fit; one serves both shards of query heads.
        close(forward(shards[0], put(k, "data"), put(v, "data")), out)
        one = forward(shards[0], put(k[:, :, :1], "data"), put(v[:, :, :1], "data"))
        close(one, alone_one)
        for spec in ((None, "data"), (None, None, None, "tensor")):
            message = refusal(lambda spec=spec: attention(*(put(x, *spec) for x in (q, k, v))))
            assert "ring attention" in message, message
        by_key = put(np.zeros((1, 1, 1, t), bool), None, None, None, "data")
        message = refusal(lambda: attention(*shards, mask=by_key))
        assert "got s of bnts sharded over 'data'" in message, message
print("ok")
