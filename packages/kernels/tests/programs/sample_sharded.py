# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A step of an engine on eight devices, rows sharded: the results of one device. Prints "ok"."""

import functools

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_kernels import adjust_logits, sample, token_logprobs

P = PartitionSpec
logits = np.random.default_rng(0).standard_normal((16, 300), np.float32) * 3
keys = jax.random.split(jax.random.key(0), 16)
top_k = np.arange(1, 17, dtype=np.int32)
bits = np.random.default_rng(1).integers(0, 2**32, (16, 10), np.uint32)
ids = np.random.default_rng(2).integers(-1, 300, (16, 3)).astype(np.int32)
counts = np.random.default_rng(3).integers(0, 2, (16, 300)).astype(np.int32)


@functools.partial(jax.jit, static_argnames="likeliest")
def step(z, keys, k, bits, ids, counts, *, likeliest):
    bias = ids, ids.astype(np.float32) / 300
    z = adjust_logits(z, allowed=bits, bias=bias, output_counts=counts, presence_penalty=0.5)
    tokens = sample(z, keys=keys, top_k=k, top_p=0.9, temperature=0.7)
    return tokens, *token_logprobs(z, tokens, k=likeliest)


inputs = logits, keys, top_k, bits, ids, counts
# Under an Auto mesh XLA gathers the operand of `lax.top_k`.
LIKELIEST = {AxisType.Auto: 0, AxisType.Explicit: 4}
alone = {kind: step(*inputs, likeliest=k) for kind, k in LIKELIEST.items()}
forced_devices.stop_caching()
for kind, k in LIKELIEST.items():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    with jax.sharding.set_mesh(mesh):
        rows = NamedSharding(mesh, P("data"))
        arrays = [jax.device_put(a, rows) for a in inputs]
        compiled = step.lower(*arrays, likeliest=k).compile()
        for found, expected in zip(compiled(*arrays), alone[kind], strict=True):
            # Sums of 300 terms in another order; -inf and integers are equal.
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6, err_msg=str(kind))
        assert "all-gather" not in compiled.as_text(), kind
with jax.sharding.set_mesh(mesh):
    message = ""
    try:
        sample(jax.device_put(logits[:, :296], NamedSharding(mesh, P(None, "data"))), keys=keys)
    except ValueError as error:
        message = str(error)
    assert "v of bv sharded over 'data'" in message, message
    assert "jax.sharding.reshard" in message, message
print("ok")
