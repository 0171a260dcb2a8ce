# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A model in a sixth of its bytes, and what that cost beside it
#
# A byte-level model learns the source of `argparse`, so that there is something to lose.

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
# Rules say which site gets which codes: the first that matches a whole path decides, and one that
# matches nothing is an error. GPTQ needs inputs, so batches go through the model. The report is
# measured on text that neither training nor calibration saw.

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
# Which site needs its bits most? `search` prices every choice at every site with one backward pass,
# takes the best plan under a number of bytes, and measures what it predicted.

# %%
choices = [quant.Spec(weight="int4", group=32, method="gptq"), quant.Spec(), None]
limit = int(0.25 * report.bytes_before)
found = quant.search(model, seen, max_bytes=limit, choices=choices, key=jax.random.key(0))
print(found.plan)
print(f"predicted {found.predicted:.5f} nats a byte, measured {found.report.kl:.5f}")
for size, cost in found.curve(6):
    print(f"{size:>8} bytes: {cost:.5f}")

# %% [markdown]
# Codes are saved as they are, whatever product they were laid out for, and come back bit for bit
# onto a model without arrays. What each site multiplies with, and why, can be asked.

# %%
with tempfile.TemporaryDirectory() as folder:
    quant.save(small, folder)
    loaded = quant.load(folder, abstract(CONFIG))
np.testing.assert_array_equal(loaded(seen[0]["tokens"]), small(seen[0]["tokens"]))
print(quant.explain(loaded, rows=1)[1])

# %% [markdown]
# Adapters learn on top of the codes, which stay as GPTQ found them.

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
