# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A Hugging Face directory on a mesh
#
# A model is written to a Hugging Face directory and loaded again, sharded, with the same logits.
# The same module then decodes with a cache, because the cache is an argument.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from dovetail_models import attention, dense_kv, flops, init, load, qwen3, save, size

config = qwen3(vocab_size=256, embed=64, depth=2, heads=4, kv_heads=2, head_dim=16, mlp=128)
model = init(config, seed=0)
save(model, "tiny")
print(size(config), "parameters;", flops(config, tokens=128, length=128), "FLOPs for 128 tokens")

# %% [markdown]
# One CPU device stands in for a host's devices; the call is the same for eight.

# %%
devices = len(jax.devices())
mesh = jax.make_mesh((devices,), ("fsdp",), axis_types=(AxisType.Auto,))
again = load("tiny", mesh=mesh)
print(again.layers[0].attn.q.kernel[...].sharding)

tokens = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 10)), jnp.int32)
whole = again(tokens)
np.testing.assert_array_equal(whole, model(tokens))

# %% [markdown]
# Eight tokens at once, then one at a time from the cache.

# %%
positions = jnp.broadcast_to(jnp.arange(10), (2, 10))
kv = dense_kv(config, rows=2, length=10)
x, kv = model.features(tokens[:, :8], positions=positions[:, :8], attention=attention, kv=kv)
logits = [model.head(x)]
for i in range(8, 10):
    step = slice(i, i + 1)
    x, kv = model.features(
        tokens[:, step], positions=positions[:, step], attention=attention, kv=kv
    )
    logits.append(model.head(x))
np.testing.assert_allclose(jnp.concatenate(logits, axis=1), whole, atol=1e-5)
print("cached decoding gives the logits of the whole sequence")
