# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sampling on eight devices, rows sharded: the tokens of one device. Prints "ok"."""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_kernels.sampling.api import sample

P = PartitionSpec
logits = np.random.default_rng(0).standard_normal((16, 300), np.float32) * 3
keys = jax.random.split(jax.random.key(0), 16)
top_k = np.arange(1, 17, dtype=np.int32)
draw = jax.jit(lambda z, keys, k: sample(z, keys=keys, top_k=k, top_p=0.9, temperature=0.7))
alone = draw(logits, keys, top_k)
forced_devices.stop_caching()
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    with jax.sharding.set_mesh(mesh):
        rows = NamedSharding(mesh, P("data"))
        arrays = [jax.device_put(a, rows) for a in (logits, keys, top_k)]
        compiled = draw.lower(*arrays).compile()
        np.testing.assert_array_equal(compiled(*arrays), alone, err_msg=str(kind))
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
