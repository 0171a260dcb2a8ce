# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Muon, SOAP and AdamW on one problem
#
# Three optimizers train the same small Llama on the same rows of Python's standard library, each
# matrix under its own rule; AdamW also runs with its moments in 8 bits. The pictures show what a
# step of each is worth and how many bytes its state takes. At the end a bad batch arrives, and
# leaves no trace.

# %% tags=["install"]
import importlib.util
import subprocess
import sys

needed = ("dovetail_stack", "matplotlib", "sklearn")
if not all(map(importlib.util.find_spec, needed)):
    pip = "-m pip install --quiet dovetail-stack[notebooks]"
    line = [sys.executable, *pip.split()]
    if subprocess.run(line, capture_output=True).returncode:
        sys.exit("Dovetail cannot be installed. In a clone, run scripts/notebooks")

# %%
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from dovetail_data import Bytes, Text, batches, pack, text, token_bytes, write
from dovetail_models import init, llama, size
from dovetail_optim import (
    Guard,
    Step,
    branch,
    compress,
    explain,
    measurements,
    muon,
    route,
    soap,
    watch,
    wsd,
)
from dovetail_train import BitsPerByte, Eval, Jsonl, Trainer, lm_loss, read_jsonl

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.constrained_layout.use": True})
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)

# %% [markdown]
# ## One problem
#
# Sources of the standard library, one token per byte, every tenth file held out. The model has
# two layers; the optimizers get the same rows in the same order, and the same fresh weights.

# %%
files = sorted(Path(json.__file__).parent.parent.glob("*.py"))[:80]
split = {"train": [f for i, f in enumerate(files) if i % 10], "held_out": files[::10]}
tokenizer = Bytes()
rows = {
    name: pack(write(text(some), work / name, encoder=Text(tokenizer)), length=128)
    for name, some in split.items()
}
reader = batches(rows["held_out"], global_batch=32, seed=0)
held_out = [next(reader) for _ in range(2)]
config = llama(
    vocab_size=tokenizer.vocab_size, embed=64, depth=2, heads=4, mlp=192, tie=True
)
print(
    f"{size(config):,} parameters; {rows['train'].tokens:,} bytes of code to learn from"
)

# %% [markdown]
# ## One schedule
#
# All follow the same form: warm-up, a constant rate, a cooldown. A schedule is a value, so it can
# be drawn, saved, and branched: the dashed line ends a run early, from a checkpoint of its
# constant phase.

# %%
STEPS = 80


def rate(peak):
    return wsd(peak, warmup=STEPS // 20, total=STEPS, cooldown=STEPS // 4)


count = np.arange(STEPS + 1)
early = branch(rate(1.0), at=40, cooldown=10)
figure, axis = plt.subplots(figsize=(6, 2.4))
axis.plot(count, rate(1.0)(count), lw=2, label="wsd")
axis.plot(count[40:], early(count[40:]), "--", lw=2, label="branched at 40")
axis.set(xlabel="step", ylabel="rate / peak rate", title="warm-up, stable, decay")
axis.legend(frameon=False, loc="center left", bbox_to_anchor=(0.12, 0.5))
plt.show()

# %% [markdown]
# ## A rule for every parameter
#
# Muon and SOAP move matrices. Embeddings and norms stay with AdamW, so `route` gives each
# parameter a rule by its name. `explain` lists rules and state before anything is allocated; a
# parameter without a rule would be an error.

# %%
others = optax.adamw(rate(2e-3), b2=0.95, weight_decay=0.1)


def beside_adamw(matrices):
    return [("layers.**.kernel", matrices), ("**", others)]


RULES = {
    "AdamW": [("**", others)],
    "AdamW, 8 bits": [("**", compress(others))],
    "Muon": beside_adamw(muon(rate(0.04), weight_decay=0.1, dtype=jnp.float32)),
    "SOAP": beside_adamw(soap(rate(3e-3), weight_decay=0.1)),
}
_, params = nnx.split(init(config, seed=0), nnx.Param)
print(explain(RULES["Muon"], params))

# %% [markdown]
# ## Four runs
#
# The rates of AdamW and Muon come from a short search on this problem, that of SOAP from the
# package's benchmark; there is one seed. `Eval` measures bits per byte on the held-out files
# every 20 steps.

# %%
metrics = {"bits": BitsPerByte(token_bytes(tokenizer))}


def run(name):
    tx = optax.chain(optax.clip_by_global_norm(1.0), route(RULES[name]))
    trainer = Trainer(tx, lm_loss())
    trainer.fit(
        init(config, seed=0),
        batches(rows["train"], global_batch=8, seed=0),
        steps=STEPS,
        sinks=[Jsonl(work / f"{name}.jsonl")],
        hooks=[Eval(held_out, every=20, metrics=metrics)],
    )
    lines = read_jsonl(work / f"{name}.jsonl")
    bits = {line["step"]: line["eval/bits"] for line in lines if "eval/bits" in line}
    print(f"{name:>14}: {bits[STEPS]:.3f} bits per byte after {STEPS} steps")
    return bits, [line["loss"] / np.log(2) for line in lines if "loss" in line]


runs = {name: run(name) for name in RULES}

# %%
STYLES = {"AdamW": "C0-", "AdamW, 8 bits": "C1--", "Muon": "C4-", "SOAP": "C5-"}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for name, (bits, losses) in runs.items():
    smooth = np.convolve(losses, np.ones(8) / 8, mode="valid")  # means of eight steps
    left.plot(np.arange(len(smooth)) + 4, smooth, STYLES[name], lw=1.8, label=name)
    right.plot(
        bits.keys(), bits.values(), STYLES[name], marker="o", ms=4, lw=1.8, label=name
    )
left.set(
    xlabel="step",
    ylabel="training loss (bits per byte)",
    title="training, mean of 8 steps",
)
right.set(xlabel="step", ylabel="bits per byte", title="held-out files")
left.legend(frameon=False)
for axis in (left, right):
    axis.grid(alpha=0.3)
plt.show()
final = {name: bits[STEPS] for name, (bits, _) in runs.items()}
assert max(final["Muon"], final["SOAP"]) < final["AdamW"]
assert abs(final["AdamW, 8 bits"] - final["AdamW"]) < 0.05

# %% [markdown]
# AdamW with moments in 8 bits follows AdamW in 32; the dashed line hides the other. Muon and SOAP
# end below both on this problem. A step of SOAP also computes more, and its bases take memory:


# %%
RULES["Muon + 8 bits"] = [RULES["Muon"][0], ("**", compress(others))]
reports = {name: explain(rules, params) for name, rules in RULES.items()}
kib = {name: report.state_bytes / 2**10 for name, report in reports.items()}
weights = reports["AdamW"].parameter_bytes / 2**10
figure, axis = plt.subplots(figsize=(7, 2.8))
bars = axis.barh(list(kib), list(kib.values()), color=["C0", "C1", "C4", "C5", "C6"])
shares = [
    f"{size:.0f} KiB, {size / weights:.2f} of the weights" for size in kib.values()
]
axis.bar_label(bars, shares, padding=4, bbox={"color": "white", "pad": 0.5})
axis.axvline(weights, color="k", ls=":", label="the weights themselves (float32)")
axis.set(xlabel="optimizer state (KiB)", xlim=(0, 1.7 * max(kib.values())))
axis.invert_yaxis()
axis.legend(frameon=False, loc="lower right")
plt.show()
assert kib["AdamW, 8 bits"] < 0.3 * kib["AdamW"]
assert kib["Muon + 8 bits"] < kib["Muon"] < kib["AdamW"] < kib["SOAP"]

# %% [markdown]
# ## A bad batch
#
# Outside of a trainer, `Step` updates and applies in one call. `Guard` judges the gradient's norm
# and the loss, and `watch` measures updates on the device. In this plain loop batch 12 has a NaN.

# %%
graph, params = nnx.split(init(config, seed=0), nnx.Param)
one_step = Step(watch(route(RULES["Muon"])), guard=Guard())
loss_of = lm_loss()


@jax.jit
def step(params, state, batch):
    def mean(params):
        total, count = loss_of(nnx.merge(graph, params), batch, key=None)
        return total / count

    loss, grads = jax.value_and_grad(mean)(params)
    params, state, info = one_step(params, state, grads, loss=loss)
    return params, state, loss, info


state, reader, losses = (
    one_step.init(params),
    batches(rows["train"], global_batch=8, seed=0),
    [],
)
for number in range(24):
    batch = next(reader)
    if number == 12:
        batch["mask"] = batch["mask"] * np.float32(np.nan)
        before = jax.tree.map(np.asarray, (params, state.inner))
    params, state, loss, info = step(params, state, batch)
    losses.append(float(loss))
    assert info.skipped == (number == 12)
    if number == 12:  # not a bit of parameters or moments has changed
        jax.tree.map(np.testing.assert_array_equal, before, (params, state.inner))
for name in ("update_rms/layers.0.attn.q.kernel", "update_rms/embed.embedding"):
    print(f"{name}: {measurements(state)[name]:.1e}")

# %%
figure, axis = plt.subplots(figsize=(6, 2.6))
axis.plot(losses, "o-", ms=4)
axis.axvspan(11.5, 12.5, color="C1", alpha=0.4, label="NaN: skipped, nothing changed")
axis.set(xlabel="step", ylabel="loss (nats per byte)", title="a guarded loop of Muon")
axis.legend(frameon=False)
plt.show()
assert losses[-1] < 0.8 * losses[0]

# %%
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Replace `others` by `compress(others)` in the rules of SOAP, or give the norms a rule of their
#   own.
# - [A language model from text](language_model.ipynb) uses Muon in a longer run.
# - [Your own loop](plain_jax.ipynb) takes an optimizer from here into plain Flax and Optax.
# - The recorded comparison, with three seeds and rates from a grid, is on the [page of
#   dovetail-optim](../../packages/optim/README.md).
