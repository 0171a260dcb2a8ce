# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Attention on every backend
#
# `attention` of dovetail-kernels is one function with several implementations: for CPUs, NVIDIA
# GPUs and TPUs. This notebook asks which one runs and why, measures memory and time over the
# length of a row, and trains a model with and without it: equal losses, in a fraction of the
# memory.

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
import functools
import json
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.sharding import AbstractDevice, AbstractMesh

from dovetail_data import Bytes, Text, batches, pack, text, write
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

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.constrained_layout.use": True})
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)

# %% [markdown]
# ## Which implementation, and why
#
# `explain` takes the arguments of a call, or only their shapes. It names the implementation that
# would run, and the reason against each other one.

# %%
shape = jax.ShapeDtypeStruct((1, 2048, 8, 64), jnp.bfloat16)
segments = jax.ShapeDtypeStruct((1, 2048), jnp.int32)
causal = functools.partial(explain, attention, shape, shape, shape, causal=True)
print(causal(segment_ids=segments))

# %% [markdown]
# It also answers for a device that is not there: an abstract mesh names it, as for `jax.export`.
# On a Hopper GPU the choice depends on the call: packed rows get calls of cuDNN of their own.


# %%
def on(kind, platform, **options):
    device = AbstractDevice(device_kind=kind, platform=platform, num_cores=None)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        return causal(**options)


h100 = "NVIDIA H100 80GB HBM3", "cuda"
print("one document per row:", on(*h100), end="\n\n")
print("packed rows:", on(*h100, segment_ids=segments), end="\n\n")
print("packed rows:", on("TPU v5e", "tpu", segment_ids=segments))
assert on(*h100).selected != on(*h100, segment_ids=segments).selected

# %% [markdown]
# An implementation asked for by name that cannot do the call is an error with the reason. Nothing
# falls back in silence.

# %%
x = jnp.zeros((1, 8, 1, 16))
try:
    attention(x, x, x, causal=True, impl="cudnn")
except ValueError as error:
    print(error)
else:
    raise AssertionError("cuDNN ran on a CPU")

# %% [markdown]
# ## Memory
#
# The textbook formula holds a score for every query and key. XLA states how much temporary memory
# a compiled program needs, so these figures are exact and nothing has to run. Each program
# computes the output and the gradients, for 4 heads of width 32 in float32.


# %%
def gradient(run):
    def loss(q, k, v, segment_ids):
        return (run(q, k, v, segment_ids) ** 2).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))


ours = functools.partial(attention, causal=True)
PROGRAMS = {
    "dovetail": gradient(lambda q, k, v, s: ours(q, k, v)),
    "dovetail, 8 documents": gradient(lambda q, k, v, s: ours(q, k, v, segment_ids=s)),
    "jax.nn": gradient(
        lambda q, k, v, s: jax.nn.dot_product_attention(q, k, v, is_causal=True)
    ),
}
LENGTHS = (512, 1024, 2048, 4096)


def compiled(name, length):
    row = jax.ShapeDtypeStruct((1, length, 4, 32), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    return PROGRAMS[name].lower(row, row, row, ids).compile()


executables = {(name, n): compiled(name, n) for name in PROGRAMS for n in LENGTHS}
mib = {
    key: executable.memory_analysis().temp_size_in_bytes / 2**20
    for key, executable in executables.items()
}
assert mib["jax.nn", 4096] > 10 * mib["dovetail", 4096]
for name in PROGRAMS:
    print(f"{name:>22}:", ", ".join(f"{n}: {mib[name, n]:.1f} MiB" for n in LENGTHS))

# %% [markdown]
# ## Time
#
# The same programs, run here up to 2,048 tokens. On a CPU the clock is CPU time, which a busy
# machine disturbs least; the smallest of four is drawn. Compare the shapes of the curves, not the
# milliseconds: another machine gives others.

# %%
TIMED = LENGTHS[:-1]
clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter


def milliseconds(name, length):
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (1, length, 4, 32)) for key in keys)
    ids = jnp.repeat(jnp.arange(8), length // 8)[None]
    times = []
    for _ in range(4):
        start = clock()
        jax.block_until_ready(executables[name, length](q, k, v, ids))
        times.append(1e3 * (clock() - start))
    return min(times)


took = {(name, n): milliseconds(name, n) for name in PROGRAMS for n in TIMED}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for name, style in zip(PROGRAMS, ("C0o-", "C4s-.", "C1^--"), strict=True):
    left.loglog(LENGTHS, [mib[name, n] for n in LENGTHS], style, base=2, label=name)
    right.loglog(TIMED, [took[name, n] for n in TIMED], style, base=2, label=name)
left.set(ylabel="temporary memory (MiB)", title="memory, by XLA's analysis")
right.set(ylabel="time (ms)", title="time on this machine: yours differs")
for axis in (left, right):
    axis.set(xlabel="length of the row (tokens)")
    axis.set_xticks(LENGTHS if axis is left else TIMED)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.grid(alpha=0.3)
left.legend(frameon=False)
plt.show()

# %% [markdown]
# ## In a model
#
# Model and trainer take operations as arguments. Real text, packed into rows of 1,024 tokens,
# trains a small Llama with a vocabulary of 8,192; the same three steps run with the defaults,
# with our attention, and also with a loss that never makes the logits.

# %%
files = sorted(Path(json.__file__).parent.glob("*.py"))
corpus = write(text(files), work / "code", encoder=Text(Bytes()))
rows = pack(corpus, length=1024)
reader = batches(rows, global_batch=1, seed=0)
data = [next(reader) for _ in range(3)]
config = llama(
    vocab_size=8192, embed=64, depth=2, heads=4, kv_heads=2, mlp=128, tie=True
)
OPERATIONS = {
    "defaults": {},
    "attention": {"attention": attention},
    "attention, cross-entropy": {
        "attention": attention,
        "cross_entropy": linear_cross_entropy,
    },
}


def run(operations):
    trainer = Trainer(optax.adamw(1e-3), lm_loss(**operations))
    model = init(config, seed=0)
    program = trainer.program(model, data[0])
    step = (
        jax.jit(program.fn, donate_argnums=program.donate)
        .lower(*program.args)
        .compile()
    )
    state, losses = trainer.init(model), []
    for batch in data:
        state, metrics = step(state, batch)
        losses.append(float(metrics.scalars["loss"]))
    temporary = step.memory_analysis().temp_size_in_bytes / 2**20
    return trainer.model(state), losses, temporary


results = {name: run(operations) for name, operations in OPERATIONS.items()}
for name, (_, losses, temporary) in results.items():
    print(
        f"{name:>24}: losses",
        *(f"{loss:.5f}" for loss in losses),
        f"in {temporary:.0f} MiB",
    )

# %%
model, base, _ = results["defaults"]
figure, axis = plt.subplots(figsize=(7, 2.2))
sizes = {name: temporary for name, (_, _, temporary) in results.items()}
bars = axis.barh(list(sizes), list(sizes.values()), color=["C1", "C0", "C4"])
axis.bar_label(bars, [f"{size:.0f} MiB" for size in sizes.values()], padding=4)
axis.set(
    xlabel="temporary memory of a training step (MiB)",
    xlim=(0, 1.15 * max(sizes.values())),
)
axis.invert_yaxis()
plt.show()
for _, losses, _ in results.values():
    np.testing.assert_allclose(losses, base, atol=1e-4)  # rounding of float32
assert sizes["attention, cross-entropy"] < sizes["defaults"] / 4

# %% [markdown]
# ## The head in 8 bits
#
# Two more operations of the same kind: a product with packed weights, and a sampler in which each
# row of a batch has its own options.

# %%
head = jnp.asarray(model.embed.embedding[...]).T  # tied: [embed, vocabulary]
packed_head = pack_weights(head, bits=8)
print(
    f"head: {head.nbytes / 2**20:.1f} MiB, packed {packed_head.nbytes / 2**20:.1f} MiB"
)
hidden = jax.random.normal(jax.random.key(0), (3, config.embed))
logits, exact = quantized_matmul(hidden, packed_head), hidden @ head
print(
    f"largest difference: {jnp.abs(logits - exact).max():.4f} "
    f"of {jnp.abs(exact).max():.2f}"
)
tokens = sample(
    logits,
    keys=jax.random.split(jax.random.key(1), 3),
    temperature=jnp.asarray([0.0, 0.7, 1.0]),
    top_k=jnp.asarray([0, 50, 0]),
    top_p=jnp.asarray([1.0, 1.0, 0.9]),
)
assert tokens[0] == logits[0].argmax()
print("tokens:", tokens)

# %%
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Add `window=256` to the calls: how do memory and time change?
# - [Long rows on several devices](eight_devices.ipynb) shard attention over a mesh.
# - [Quantize a whole model](quantization.ipynb), and choose the bits by a picture.
# - The [figures on several machines](../../packages/kernels/README.md) are in the documentation.
