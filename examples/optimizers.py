# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Every parameter by its own rule, and a bad batch without a trace
#
# Muon updates the matrices inside the layers, AdamW with 8-bit moments the embedding, AdamW the
# rest. Before anything is allocated, `explain` lists the rule and the state of each parameter. A
# parameter without a rule is an error.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dovetail_models import init, llama
from dovetail_optim import (
    Guard,
    Step,
    branch,
    compress,
    explain,
    measurements,
    muon,
    route,
    watch,
    wsd,
)
from dovetail_train import lm_loss

model = init(llama(vocab_size=256, embed=32, depth=2, heads=4, mlp=64, tie=True), seed=0)
graph, params = nnx.split(model, nnx.Param)
rate = wsd(0.02, warmup=5, total=200, cooldown=40)
rules = [
    ("layers.**.kernel", muon(rate, scale="rms", weight_decay=0.1, dtype=jnp.float32)),
    ("embed.**", compress(optax.adamw(rate))),
    ("**", optax.adamw(rate)),
]
report = explain(rules, params)
print(report)
assert report.state_bytes < 1.3 * report.parameter_bytes  # AdamW alone would hold twice as much

# %% [markdown]
# `Step` updates and applies in one call. The guard judges the gradient's norm and the loss; `watch`
# keeps the root mean squares of gradients, updates and weights on the device.

# %%
one_step = Step(watch(route(rules)), guard=Guard())
loss_of = lm_loss()


@jax.jit
def step(params, state, batch):
    def mean(params):
        total, count, *_ = loss_of(nnx.merge(graph, params), batch, key=None)
        return total / count

    loss, grads = jax.value_and_grad(mean)(params)
    params, state, info = one_step(params, state, grads, loss=loss)
    return params, state, loss, info


def batch_of(number, weight=1.0):
    """Rows that count upwards from anywhere."""
    start = np.random.default_rng(number).integers(0, 256, (8, 1))
    ids = ((start + np.arange(33)) % 256).astype(np.int32)
    mask = np.full((8, 32), weight, np.float32)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask}


state, losses = one_step.init(params), []
for number in range(20):
    params, state, loss, info = step(params, state, batch_of(number))
    losses.append(float(loss))
print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}, gradient norm {info.gradient_norm:.3f}")
for name in ("update_rms/layers.0.attn.q.kernel", "update_rms/embed.embedding"):
    print(f"{name}: {measurements(state)[name]:.1e}")
assert losses[-1] < 0.7 * losses[0]

# %% [markdown]
# A batch with a NaN loss does not change a bit of parameters or moments.

# %%
before = jax.tree.map(np.asarray, (params, state.inner))
params, state, loss, info = step(params, state, batch_of(20, weight=np.nan))
print(f"loss {loss}, skipped: {info.skipped}")
assert info.skipped
jax.tree.map(np.testing.assert_array_equal, before, (params, state.inner))
params, state, loss, info = step(params, state, batch_of(21))
assert not info.skipped

# %% [markdown]
# A schedule is a value. To end a run early, or to try a cooldown from a checkpoint of a running
# run, branch at the step of the checkpoint.

# %%
early = branch(rate, at=100, cooldown=20)
print([f"{float(s(110)):.4f}" for s in (rate, early)])
