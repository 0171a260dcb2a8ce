# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A model in a sixth of its bytes, with the cost measured
#
# A byte-level model first learns the source of `argparse`.

# %%
import argparse
import inspect
import tempfile

import jax
import numpy as np
import optax
from flax import nnx

import dovetail_quant as quant
from dovetail_models import abstract, init, llama
from dovetail_train import lm_loss

CONFIG = llama(vocab_size=256, embed=64, depth=2, heads=4, mlp=128, tie=True)
SOURCE = np.frombuffer(inspect.getsource(argparse).encode(), np.uint8).astype(np.int32)
TRAIN, HELD_OUT = SOURCE[:-8000], SOURCE[-8000:]


def batch(text, rows, seed):
    starts = np.random.default_rng(seed).integers(0, len(text) - 65, rows)
    window = text[starts[:, None] + np.arange(65)]
    mask = np.ones((rows, 64), np.float32)
    return {"tokens": window[:, :-1], "targets": window[:, 1:], "mask": mask}


model = init(CONFIG, seed=0)
optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
loss_of = lm_loss()


@nnx.jit
def step(model, optimizer, batch):
    def mean(model):
        total, count, *_ = loss_of(model, batch, key=None)
        return total / count

    loss, grads = nnx.value_and_grad(mean)(model)
    optimizer.update(model, grads)
    return loss


for i in range(200):
    loss = step(model, optimizer, batch(TRAIN, 16, i))
print(f"trained to {float(loss):.3f} nats a byte")

# %% [markdown]
# Rules assign codes to sites: the first match of a whole path decides, and a rule without a match
# is an error. GPTQ needs inputs, so batches run through the model. The report is measured on text
# unseen by training and calibration.

# %%
rules = [("embed", quant.Spec()), ("**", quant.Spec(weight="int4", group=32, method="gptq"))]
seen = [batch(TRAIN, 16, 1000 + i) for i in range(8)]
held_out = [batch(HELD_OUT, 16, i) for i in range(8)]
calibration = quant.calibrate(model, quant.plan(model, rules), seen)
small = quant.apply(model, calibration)
report = quant.report(model, small, held_out)
print(report)
assert report.bytes_after < 0.2 * report.bytes_before

# %% [markdown]
# `search` predicts the cost of every choice at every site with one backward pass, takes the best
# plan under a limit of bytes, and measures it.

# %%
choices = [quant.Spec(weight="int4", group=32, method="gptq"), quant.Spec(), None]
limit = int(0.25 * report.bytes_before)
best = quant.search(model, seen, max_bytes=limit, choices=choices, key=jax.random.key(0))
print(best.plan)
print(f"predicted {best.predicted:.5f} nats a byte, measured {best.report.kl:.5f}")
for size, cost in best.curve(6):
    print(f"{size:>8} bytes: {cost:.5f}")

# %% [markdown]
# Codes are saved in a canonical form, independent of the product, and loaded bit for bit onto a
# model without arrays. `explain` lists the product of each site, with the reason.

# %%
with tempfile.TemporaryDirectory() as folder:
    quant.save(small, folder)
    loaded = quant.load(folder, abstract(CONFIG))
np.testing.assert_array_equal(loaded(seen[0]["tokens"]), small(seen[0]["tokens"]))
print(quant.explain(loaded, rows=1)[1])

# %% [markdown]
# Adapters train on top of the codes. The codes do not change.

# %%
adapted = quant.qlora(small, rank=4, alpha=8.0, rngs=nnx.Rngs(1))
tuner = nnx.Optimizer(adapted, optax.adam(3e-3), wrt=nnx.LoRAParam)


@nnx.jit
def tune(model, tuner, batch):
    def mean(model):
        total, count, *_ = loss_of(model, batch, key=None)
        return total / count

    loss, grads = nnx.value_and_grad(mean, argnums=nnx.DiffState(0, nnx.LoRAParam))(model)
    tuner.update(model, grads)
    return loss


losses = [float(tune(adapted, tuner, batch(TRAIN, 16, i))) for i in range(60)]
print(f"{np.mean(losses[:10]):.3f} to {np.mean(losses[-10:]):.3f} nats a byte")
assert np.mean(losses[-10:]) < np.mean(losses[:10])
