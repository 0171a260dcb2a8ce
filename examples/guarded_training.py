# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A run that looks after itself
#
# One batch of this run is broken, and one causes a loss spike. The trainer skips the first, the
# guard the second; neither changes a bit of the state. Parameters and their moving average are both
# evaluated, and the curves are written to one HTML file. First, an estimate gives the memory of the
# same step on absent devices.

# %%
import tempfile
from pathlib import Path

import numpy as np
import optax
from flax import nnx

from dovetail_optim import Guard
from dovetail_runs import page, read_metrics
from dovetail_train import (
    Eval,
    Jsonl,
    Trainer,
    abstract_mesh,
    estimate,
    read_jsonl,
)

STEPS, BROKEN, SPIKE = 120, 30, 80


def squared_error(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), error.size * 1.0


def batch(step):
    random = np.random.default_rng(step)
    x = random.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x).sum(1, keepdims=True) + 0.1 * random.normal(size=(64, 1)).astype(
        np.float32
    )
    if step == BROKEN:
        x[3, 5] = np.nan
    return {"x": x, "y": 100 * y if step == SPIKE else y}


def perceptron():
    rngs = nnx.Rngs(0)
    layers = nnx.Linear(8, 256, rngs=rngs), nnx.tanh, nnx.Linear(256, 1, rngs=rngs)
    return nnx.Sequential(*layers)


# %% [markdown]
# Memory of a step on four H200 with parameters and optimizer sharded. Nothing is allocated.

# %%
absent = Trainer(
    optax.adam(1e-2), squared_error, mesh=abstract_mesh(4, fsdp=4), ema=0.95
)
needed = estimate(absent, nnx.eval_shape(perceptron), batch(0), device="NVIDIA H200")
print(needed)
assert needed.fits

# %%
folder = Path(tempfile.mkdtemp())
trainer = Trainer(optax.adam(1e-2), squared_error, ema=0.95, guard=Guard(window=20))
held_out, metrics = [batch(step) for step in (1000, 1001)], {"error": squared_error}
result = trainer.fit(
    perceptron(),
    [batch(step) for step in range(STEPS)],
    steps=STEPS,
    sinks=[Jsonl(folder / "metrics.jsonl")],
    hooks=[Eval(held_out, every=40, metrics=metrics, ema=ema) for ema in (False, True)],
)

# %%
lines = read_jsonl(folder / "metrics.jsonl")
skipped = [line["step"] for line in lines if line.get("skipped")]
print(f"skipped steps: {skipped}")
final = {
    name: value
    for line in lines
    for name, value in line.items()
    if name.startswith("eval")
}
print(
    f"held out: parameters {final['eval/error']:.4f}, "
    f"averages {final['eval_ema/error']:.4f}"
)
shown = page({"guarded": read_metrics(folder / "metrics.jsonl")})
report = shown.write(folder / "report.html")
assert skipped == [BROKEN, SPIKE]
assert result.step == STEPS
assert final["eval_ema/error"] < 1
assert "training loss" in report.read_text()
