# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Any module, any loss
#
# The trainer is not tied to language models. Here it fits a perceptron to points in microbatches;
# some points have no label. The loss returns a sum and a count, so the split changes only rounding.
# A mean of the microbatches' means would change the result.

# %%
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dovetail_train import Trainer


class Perceptron(nnx.Module):
    def __init__(self, *, width, rngs):
        self.inner = nnx.Linear(2, width, rngs=rngs)
        self.outer = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)))[..., 0]


def squared_error(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return (error * batch["mask"]).sum(), batch["mask"].sum()


def points(seed):
    for step in itertools.count():
        random = np.random.default_rng([seed, step])
        x = random.normal(size=(32, 2)).astype(np.float32)
        known = (random.random(32) < np.linspace(0.1, 0.9, 32)).astype(np.float32)
        yield {"x": x, "y": np.sin(x).sum(1), "mask": known}


# %%
def train(*, accumulate):
    trainer = Trainer(optax.adam(1e-2), squared_error, accumulate=accumulate)
    result = trainer.fit(Perceptron(width=16, rngs=nnx.Rngs(0)), points(0), steps=300)
    return trainer.model(result.state), result.scalars["loss"]


whole, loss = train(accumulate=1)
parts, _ = train(accumulate=8)
print(f"loss after 300 steps: {loss:.4f}")

# %%
difference = jax.tree.map(
    lambda a, b: float(jnp.abs(a - b).max()), nnx.state(whole), nnx.state(parts)
)
largest = max(jax.tree.leaves(difference))
print(f"largest difference of a parameter between 1 and 8 microbatches: {largest:.1e}")
assert loss < 0.1
assert largest < 1e-3  # 300 steps of float32 rounding
