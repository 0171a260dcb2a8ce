# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_kernels import attention, explain


class Attention(nnx.Module):
    def __init__(self, width, *, rngs):
        self.qkv = nnx.LinearGeneral(width, (3, 4, width // 4), rngs=rngs)
        self.out = nnx.LinearGeneral((4, width // 4), width, axis=(-2, -1), rngs=rngs)

    def __call__(self, x, documents):
        q, k, v = jnp.moveaxis(self.qkv(x), -3, 0)
        print(explain(attention, q, k, v, causal=True, segment_ids=documents))
        return self.out(attention(q, k, v, causal=True, segment_ids=documents))


layer = nnx.jit(Attention(64, rngs=nnx.Rngs(0)))
x = jax.random.normal(jax.random.key(0), (1, 512, 64))
documents = jnp.repeat(jnp.arange(4), 128)[None]  # four in the row
before, after = layer(x, documents), layer(x.at[:, 0].add(1.0), documents)
print("tokens that saw the change:", int((before != after).any(-1).sum()))
# prints: tokens that saw the change: 128
