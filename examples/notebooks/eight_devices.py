# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # One model on eight devices, here and elsewhere
#
# A laptop can hold a mesh of eight devices: JAX splits its CPU. A language model is placed on
# several meshes, its shards are drawn, the losses are compared with those of one device, and a run
# saved on one mesh continues on another. Then a step is planned for GPUs that are not there.

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

# %% [markdown]
# JAX reads these variables once, when it first looks for devices: run this cell in a fresh kernel.
# Programs on several CPU devices must not come from the compilation cache, as
# [its page](../../docs/cpu_meshes.md) explains; real accelerators have no such limit.

# %%
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
# Small programs compile for longer than they run, so XLA need not optimize.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)

import json
import tempfile
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.patches import Rectangle

from dovetail_checkpoint import Store
from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_models import Remat, abstract, describe, init, llama
from dovetail_train import Trainer, abstract_mesh, estimate, lm_loss, make_mesh

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white"})
assert len(jax.devices()) == 8, "restart the kernel, then run all cells"
jax.devices()

# %% [markdown]
# ## Meshes
#
# A mesh gives names to axes of devices. `fsdp` splits parameters and rows, `tensor` splits heads
# and hidden units. The model's own rules say which axis splits which dimension; `describe` lists
# the result.

# %%
config = llama(
    vocab_size=Bytes().vocab_size, embed=64, depth=2, heads=4, mlp=128, tie=True
)
meshes = {
    "one device": make_mesh(devices=jax.devices()[:1]),
    "fsdp=8": make_mesh(fsdp=8),
    "fsdp=4, tensor=2": make_mesh(fsdp=4, tensor=2),
}
models = {name: init(config, mesh=mesh, seed=0) for name, mesh in meshes.items()}
describe(models["fsdp=4, tensor=2"])

# %% [markdown]
# JAX itself draws where the parts of one array lie:

# %%
jax.debug.visualize_array_sharding(
    models["fsdp=4, tensor=2"].layers[0].mlp.up.kernel[...]
)

# %% [markdown]
# The same for several arrays on both meshes. A colour is a device.

# %%
arrays = {
    "embedding": lambda m: m.embed.embedding,
    "attn.q": lambda m: m.layers[0].attn.q.kernel,
    "mlp.up": lambda m: m.layers[0].mlp.up.kernel,
    "mlp.down": lambda m: m.layers[0].mlp.down.kernel,
}
colours = plt.get_cmap("tab10").colors


def draw(ax, array):
    """A rectangle for each shard, with the number of its device."""
    rows, columns = array.shape
    for shard in array.addressable_shards:
        (top, bottom, _), (left, right, _) = (
            part.indices(size)
            for part, size in zip(shard.index, array.shape, strict=True)
        )
        box = (
            (left / columns, top / rows),
            (right - left) / columns,
            (bottom - top) / rows,
        )
        ax.add_patch(
            Rectangle(*box, color=colours[shard.device.id], ec="white", lw=1.5)
        )
        centre = box[0][0] + box[1] / 2, box[0][1] + box[2] / 2
        ax.text(
            *centre,
            shard.device.id,
            ha="center",
            va="center",
            color="white",
            weight="bold",
        )
    ax.set(
        xlim=(0, 1),
        ylim=(1, 0),
        xticks=[],
        yticks=[],
        xlabel=f"{columns}",
        ylabel=f"{rows}",
    )


fig, axes = plt.subplots(2, 4, figsize=(9, 4.6))
for line, name in zip(axes, ["fsdp=8", "fsdp=4, tensor=2"], strict=True):
    for ax, (label, get) in zip(line, arrays.items(), strict=True):
        draw(ax, get(models[name])[...])
        ax.set_title(f"{label}\n{name}", fontsize=10)
fig.tight_layout()
plt.show()

# %% [markdown]
# ## The same losses
#
# Real text, ten steps on each mesh. The model places itself, the trainer does the rest: no line of
# the model or the loss knows about devices.

# %%
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)
files = sorted(Path(json.__file__).parent.glob("*.py"))
corpus = write(text(files), work / "corpus", encoder=Text(Bytes()))
rows = pack(corpus, length=64)


class Losses:
    """A sink is any object with this method."""

    def __init__(self):
        self.by_step = {}

    def write(self, step, scalars):
        if "loss" in scalars:
            self.by_step[step] = scalars["loss"]


def train(name, steps, root):
    losses = Losses()
    trainer = Trainer(optax.adamw(3e-3), lm_loss(), mesh=meshes[name])
    with Store(root) as store:
        data = batches(rows, global_batch=16, seed=0)
        trainer.fit(models[name], data, steps=steps, store=store, sinks=[losses])
    return losses.by_step


curves = {name: train(name, 10, work / name) for name in ("one device", "fsdp=8")}

# %% [markdown]
# The third mesh continues the run that the second one saved, in the same directory: five more
# steps. The one device makes them too, for comparison.

# %%
curves["one device"] |= train("one device", 15, work / "one device")
curves["fsdp=4, tensor=2"] = train("fsdp=4, tensor=2", 15, work / "fsdp=8")
assert list(curves["fsdp=4, tensor=2"]) == [10, 11, 12, 13, 14]
expected = curves["one device"]
off = {
    name: {step: abs(loss / expected[step] - 1) for step, loss in curve.items()}
    for name, curve in curves.items()
}
worst = max(value for curve in off.values() for value in curve.values())
# Sums of float32 in another order, carried on for 15 steps.
assert worst < 1e-4
print(f"largest relative difference of a loss: {worst:.1e}")

# %%
fig, ax = plt.subplots(figsize=(8, 3.6))
ax.plot(list(expected), list(expected.values()), color="0.75", lw=7, label="one device")
for name, style in {"fsdp=8": "o-", "fsdp=4, tensor=2": "s--"}.items():
    label = name if name == "fsdp=8" else f"{name}, resumed from fsdp=8"
    ax.plot(list(curves[name]), list(curves[name].values()), style, ms=5, label=label)
ax.set(xlabel="step", ylabel="loss (nats per byte)", title="Three meshes, one curve")
ax.grid(True)
ax.legend()
plt.show()

# %% [markdown]
# ## Devices that are not there
#
# `estimate` traces the training step for a device that this machine lacks. It allocates nothing:
# the model below has 8 billion parameters. The bytes of the state are exact; residuals are an
# estimate, the time is a lower bound. One GPU does not hold the step, so the plan names changes
# that save memory; the picture shows the first of them, more devices.

# %%
large = llama(
    vocab_size=128256,
    embed=4096,
    depth=32,
    heads=32,
    kv_heads=8,
    mlp=14336,
    rope_theta=5e5,
)
tokens = jax.ShapeDtypeStruct((16, 4096), np.int32)
batch = {"tokens": tokens, "targets": tokens, "mask": tokens}


def plan(count):
    mesh = abstract_mesh(count, device="H200", fsdp=count)
    outline = abstract(large, mesh=mesh).configure(scan=True, remat=Remat(save=()))
    return estimate(Trainer(optax.adamw(3e-4), lm_loss(), mesh=mesh), outline, batch)


plans = {count: plan(count) for count in (1, 2, 4, 8)}
assert not plans[1].fits
plans[1]

# %%
fig, ax = plt.subplots(figsize=(8, 3.8))
below = np.zeros(len(plans))
kinds = {
    "parameters": lambda p: p.state_bytes["params"],
    "optimizer": lambda p: p.state_bytes["opt"],
    "gradients": lambda p: p.gradient_bytes,
    "kept for backward": lambda p: p.residual_bytes,
}
for label, get in kinds.items():
    heights = np.array([get(p) / 2**30 for p in plans.values()])
    ax.bar([str(count) for count in plans], heights, bottom=below, label=label)
    below += heights
memory = plans[8].memory_bytes / 2**30
ax.axhline(memory, color="black", ls="--", label="memory of an H200")
ax.set(xlabel="number of H200, fsdp over all", ylabel="GiB per device")
ax.set_title("A training step of 8 B parameters in float32")
ax.legend()
plt.show()
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Other plans: `abstract_mesh(16, device="TPU v5e", tensor=4)`, or `optax.sgd` for the optimizer.
# - [Meshes](../../docs/meshes.md): all axes, Auto and Explicit, and what each of them splits.
# - [Memory of a step](../../docs/step_memory.md): what is kept, and changes that save it.
# - [A killed run](damage_and_resume.ipynb), resumed on this kind of checkpoint.
