# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # An implementation of your own
#
# `attention` chooses among its implementations, and takes yours beside them. Below is one for short
# rows: a few lines that XLA fuses. It refuses every other call with the reason. `explain` lists it,
# and the public suite compares it with float64 NumPy, gradients included.

# %%
import functools

import jax
import jax.numpy as jnp

from dovetail_kernels import attention, explain
from dovetail_kernels.implementations import (
    AttentionCall,
    AttentionInputs,
    Implementation,
    Work,
)
from dovetail_kernels.testing import check_attention

LONGEST = 512  # keys of a row


def refuse(call: AttentionCall) -> str | None:
    """Returns the reason against a call, or None."""
    if call.keys > LONGEST:
        return f"it is for at most {LONGEST} keys, not {call.keys}"
    if call.dtype != jnp.float32:
        return f"it takes float32, not {call.dtype}"
    unknown = sorted(call.options - {"causal"})  # options of later versions too
    if unknown:
        return f"it has no {', '.join(unknown)}"
    return None


def run(call: AttentionCall, inputs: AttentionInputs) -> jax.Array:
    """Computes softmax(scale q kᵀ) v, with the whole matrix of each head."""
    q = inputs.q
    k, v = (
        jnp.repeat(x, call.heads // call.kv_heads, axis=2) for x in (inputs.k, inputs.v)
    )
    highest = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    logits = call.scale * highest("btnh,bsnh->bnts", q, k)
    if call.causal:
        visible = jnp.tril(jnp.ones((call.queries, call.keys), bool))
        logits = jnp.where(visible, logits, -jnp.inf)
    return highest("bnts,bsng->btng", jax.nn.softmax(logits), v)


def work(call: AttentionCall) -> Work:
    """Returns the cost: two products, and logits and weights of all pairs in memory."""
    pairs = call.batch * call.heads * call.queries * call.keys
    rows = call.batch * (call.queries * call.heads + call.keys * call.kv_heads)
    width = call.head_dim + call.value_dim
    size = 4 * rows * width + 4 * 4 * pairs
    return Work(flops=2 * pairs * width, bytes=size, peak_bytes=2 * 4 * pairs)


SHORT = Implementation(name="short", refuse=refuse, work=work, run=run)

# %% [markdown]
# In order of preference: "short" where it can, else "blocked".

# %%
attend = functools.partial(attention, impl=[SHORT, "blocked"])
for length in (100, 1000):
    shape = jax.ShapeDtypeStruct((1, length, 4, 64), jnp.float32)
    print(
        explain(attend.func, shape, shape, shape, causal=True, **attend.keywords),
        end="\n\n",
    )

q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 100, 4, 64))
difference = jnp.abs(
    attend(q, k, v, causal=True) - attention(q, k, v, causal=True)
).max()
print(f"largest difference from the package's own choice: {difference:.1e}")
assert difference < 100 * jnp.finfo(jnp.float32).eps  # sums over 100 keys of about 1

# %% [markdown]
# The suite requires right answers for the claimed features, and right or refused ones elsewhere.

# %%
claimed = {"float32", "causal", "gqa", "cross", "odd", "value_width", "scale"}
check_attention(functools.partial(attention, impl=SHORT), supports=claimed)
print("passes the suite for", ", ".join(sorted(claimed)))
