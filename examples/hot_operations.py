# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Training on long packed rows, in the memory of short ones
#
# A row of 2,048 tokens holds eight documents. The textbook attention needs a 2,048 by 2,048 matrix
# per head, and the loss 2,048 by 32,000 logits. The operations of dovetail-kernels need neither.
# Model and trainer take them as arguments.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dovetail_kernels import (
    attention,
    explain,
    linear_cross_entropy,
    pack_weights,
    quantized_matmul,
    sample,
)
from dovetail_models import init, llama
from dovetail_train import Trainer, lm_loss

LENGTH, DOCUMENTS = 2048, 8
config = llama(vocab_size=32_000, embed=64, depth=2, heads=4, kv_heads=2, mlp=128, tie=True)
size = LENGTH // DOCUMENTS
ids = np.random.default_rng(0).integers(0, config.vocab_size, LENGTH + 1, np.int32)
batch = {
    "tokens": ids[None, :-1],
    "targets": ids[None, 1:],
    "mask": np.ones((1, LENGTH), np.float32),
    "segment_ids": np.repeat(np.arange(1, DOCUMENTS + 1, dtype=np.int32), size)[None],
    "positions": np.tile(np.arange(size, dtype=np.int32), DOCUMENTS)[None],
}

# %% [markdown]
# `explain` takes the arguments of a call, or their shapes. It reports the implementation that would
# run, and the reason against each other one.

# %%
shape = jax.ShapeDtypeStruct((1, LENGTH, 4, 16), jnp.float32)
segments = jnp.asarray(batch["segment_ids"])
print(explain(attention, shape, shape, shape, causal=True, segment_ids=segments))

# %% [markdown]
# The same step with and without them: equal losses, different memory. `program` returns the
# trainer's program for XLA's memory analysis.


# %%
def step(**operations):
    trainer = Trainer(optax.adamw(1e-3), lm_loss(**operations))
    model = init(config, seed=0)
    program = trainer.program(model, batch)
    compiled = jax.jit(program.fn, donate_argnums=program.donate).lower(*program.args).compile()
    state, metrics = trainer.step(trainer.init(model), batch)
    temporary = compiled.memory_analysis().temp_size_in_bytes
    return trainer.model(state), float(metrics.scalars["loss"]), temporary


_, loss, temporary = step()
model, same_loss, less = step(attention=attention, cross_entropy=linear_cross_entropy)
print(f"loss {loss:.5f} in {temporary / 2**20:.0f} MiB, {same_loss:.5f} in {less / 2**20:.0f} MiB")
assert abs(loss - same_loss) < 1e-4
assert less < temporary / 4

# %% [markdown]
# After training the head can shrink to a quarter: 8 bits per weight, multiplied directly. Each row
# of a batch samples with its own options.

# %%
head = jnp.asarray(model.embed.embedding[...]).T  # tied: [embed, vocabulary]
packed = pack_weights(head, bits=8)
print(f"head: {head.nbytes / 2**20:.1f} MiB, packed {packed.nbytes / 2**20:.1f} MiB")
hidden = jax.random.normal(jax.random.key(0), (3, config.embed))
logits = quantized_matmul(hidden, packed)
print(f"largest difference of a logit: {jnp.abs(logits - hidden @ head).max():.4f}")
tokens = sample(
    logits,
    keys=jax.random.split(jax.random.key(1), 3),
    temperature=jnp.asarray([0.0, 0.7, 1.0]),
    top_k=jnp.asarray([0, 50, 0]),
    top_p=jnp.asarray([1.0, 1.0, 0.9]),
)
print("tokens:", tokens)
assert tokens[0] == logits[0].argmax()
