# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A checkpoint, opened up and altered
#
# A model is loaded and described, gets adapters, and only these are trained. Then its layers and
# its vocabulary change, and it is saved for transformers. Every function takes a model and returns
# a new one, so the old one remains for comparison.

# %%
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType

from dovetail_models import (
    abstract,
    describe,
    diff,
    flops,
    init,
    kv_bytes,
    llama,
    load,
    lora,
    relayer,
    resize_vocab,
    save,
)

config = llama(vocab_size=96, embed=64, depth=4, heads=4, kv_heads=2, head_dim=16, mlp=128)
save(init(config, seed=0), "base")

# %% [markdown]
# The headers of the files suffice to describe the model, here sharded over eight devices absent
# from this machine.

# %%
mesh = AbstractMesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
print(describe(abstract("base"), mesh=mesh))
print(flops(config, tokens=512, length=512) / 1e9, "GFLOPs for a training step on 512 tokens")
print(kv_bytes(config, dtype=jnp.bfloat16), "bytes of cache per token")

# %% [markdown]
# Adapters on q and v of every layer. Before training they do not change a bit of the logits.

# %%
base = load("base")
tokens = jnp.asarray(np.random.default_rng(0).integers(0, 96, (4, 16)), jnp.int32)
adapted = lora.insert(base, "layers.*.attn.{q,v}", rank=4, alpha=8, rngs=nnx.Rngs(1))
np.testing.assert_array_equal(adapted(tokens), base(tokens))

# %% [markdown]
# The loss is of the next token. The filter `nnx.LoRAParam` trains the adapters alone.


# %%
@nnx.jit
def step(model, optimizer, tokens):
    def loss(model):
        logits = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    value, grads = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(model)
    optimizer.update(model, grads)
    return value


optimizer = nnx.Optimizer(adapted, optax.adam(1e-2), wrt=nnx.LoRAParam)
losses = [float(step(adapted, optimizer, tokens)) for _ in range(20)]
print("loss", losses[0], "to", losses[-1])
assert losses[-1] < losses[0] - 0.1
unmoved = lora.remove(adapted)
assert not diff(unmoved, base)

# %% [markdown]
# Saved alone, the adapters are a directory for PEFT. Merged, they are part of the kernels.

# %%
lora.save_peft(adapted, "adapter", base="base")
again = lora.load_peft(base, "adapter")
np.testing.assert_array_equal(again(tokens), adapted(tokens))
merged = lora.merge(adapted)
# The same sums of float32, in another order.
np.testing.assert_allclose(merged(tokens), adapted(tokens), atol=1e-5)

# %% [markdown]
# Drop a layer, repeat another, and add tokens to the vocabulary, each the mean of the old ones. The
# configuration follows, so the result is saved like any other model.

# %%
edited = resize_vocab(relayer(merged, [0, 1, 1, 3]), 100)
save(edited, "edited")
reloaded = load("edited")
np.testing.assert_array_equal(reloaded(tokens), edited(tokens))
print(reloaded.config.vocab_size, "tokens,", len(reloaded.layers), "layers")

# %% [markdown]
# The differences to the base:

# %%
print(diff("base", "edited"))
assert not diff(base, "base")
