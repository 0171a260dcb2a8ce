# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # One piece at a time, in your own loop
#
# A training loop of Flax, Optax, Orbax and Grain takes in packed rows, an optimizer, a loss and a
# checkpoint store, one after the other. Each library works alone, and the loop's lines stay. The
# losses are compared after every change.

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
import ast
import json
import tempfile
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

from dovetail_checkpoint import Store, verify
from dovetail_data import Bytes, Text, batches, jsonl, pack, write
from dovetail_kernels import linear_cross_entropy
from dovetail_optim import muon, route
from dovetail_train import Trainer

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.constrained_layout.use": True})
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)

# %% [markdown]
# ## The loop as it is
#
# The documents are docstrings of Python's library. Grain pads or cuts each one to a row of 128
# bytes.


# %%
LENGTH, ROWS, STEPS, WIDTH = 128, 16, 60, 64


def docstrings(file):
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (
            doc := ast.get_docstring(node)
        ):
            yield doc


files = sorted(Path(ast.__file__).parent.glob("*.py"))[:60]
tokenizer = Bytes()
documents = [document for file in files for document in docstrings(file)]


def padded(document):
    ids = np.zeros(LENGTH + 1, np.int32)
    data = [tokenizer.bos_id, *document.encode(), tokenizer.eos_id][: LENGTH + 1]
    ids[: len(data)] = data
    mask = (np.arange(LENGTH) < len(data) - 1).astype(np.float32)
    row = {"tokens": ids[:-1], "targets": ids[1:], "mask": mask}
    return row | {
        "segment_ids": np.ones(LENGTH, np.int32),
        "positions": np.arange(LENGTH),
    }


def shuffled(rows):
    return grain.MapDataset.source(rows).seed(0).shuffle().repeat().batch(ROWS)


train_documents = [d for i, d in enumerate(documents) if i % 10]
dataset = grain.MapDataset.source(train_documents).map(padded)
print(
    f"{len(documents)} docstrings; "
    f"{np.mean([row['mask'].mean() for row in dataset]):.0%} full"
)


# %% [markdown]
# The model is one block of a transformer in Flax, small enough to read. The loss and the loop are
# what many projects have.


# %%
class Model(nnx.Module):
    def __init__(self, *, rngs):
        self.embed = nnx.Embed(tokenizer.vocab_size, WIDTH, rngs=rngs)
        self.place = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.norm1, self.norm2, self.norm3 = (
            nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(3)
        )
        self.qkv, self.out = (nnx.Linear(WIDTH, n * WIDTH, rngs=rngs) for n in (3, 1))
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, batch):
        x = self.embed(batch["tokens"]) + self.place(batch["positions"])
        heads = self.qkv(self.norm1(x)).reshape(*x.shape[:2], 3, 4, WIDTH // 4)
        same = (
            batch["segment_ids"][:, None, :, None]
            == batch["segment_ids"][:, None, None, :]
        )
        q, k, v = (heads[:, :, i] for i in range(3))
        seen = jax.nn.dot_product_attention(q, k, v, mask=same, is_causal=True)
        x = x + self.out(seen.reshape(x.shape))
        return self.norm3(x + self.down(nnx.gelu(self.up(self.norm2(x)))))


def loss_of_logits(model, batch):
    logits = model.embed.attend(model(batch))
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return (nll * batch["mask"]).sum() / batch["mask"].sum()


def build(tx):
    model = Model(rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def train(data, tx, loss=loss_of_logits, *, steps=STEPS):
    @nnx.jit
    def step(model, optimizer, batch):
        grads = nnx.grad(loss)(model, batch)
        optimizer.update(model, grads)

    (model, optimizer), curve = build(tx), {}
    for number, batch in zip(range(steps), data, strict=False):
        step(model, optimizer, batch)
        if number % 10 == 9:
            curve[number + 1] = held_out_loss(model)
    return model, optimizer, curve


# %% [markdown]
# Held-out docstrings measure every variant alike. They are packed, which is the first piece.


# %%
def packed_rows(name, texts):
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    (work / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    corpus = write(jsonl(work / f"{name}.jsonl"), work / name, encoder=Text(tokenizer))
    return pack(corpus, length=LENGTH)


rows = packed_rows("train", train_documents)
held_out = packed_rows("held_out", documents[::10]).batch(np.arange(32))
compiled_loss = nnx.jit(loss_of_logits)


def held_out_loss(model):
    return float(compiled_loss(model, held_out)) / np.log(2)


adamw = optax.adamw(4e-3)
curves = {}
model, optimizer, curves["your loop"] = train(shuffled(dataset), adamw)
print(f"your loop: {curves['your loop'][STEPS]:.3f} bits per byte")

# %% [markdown]
# ## Piece 1: packed rows, in Grain's own pipeline
#
# `pack` returns rows with random access, which is all that Grain asks of a source. The same
# shuffle, repeat and batch follow. No byte of a long document is cut off, and almost no slot is
# empty, so a batch of the same shape teaches more.

# %%
print(f"rows {rows.fill:.1%} full")
_, _, curves["+ packed rows"] = train(shuffled(rows), adamw)
print(f"packed rows: {curves['+ packed rows'][STEPS]:.3f} bits per byte")

# %% [markdown]
# ## Piece 2: an optimizer
#
# It is an `optax.GradientTransformation`, so `nnx.Optimizer` takes it as it is. Muon moves the
# matrices, AdamW the rest.

# %%
tx = route([("{qkv,out,up,down}.kernel", muon(0.04, dtype=jnp.float32)), ("**", adamw)])
_, _, curves["+ Muon"] = train(shuffled(rows), tx)
print(f"Muon: {curves['+ Muon'][STEPS]:.3f} bits per byte")

# %% [markdown]
# ## Piece 3: a loss
#
# `linear_cross_entropy` takes the features and the weights of the head, and never makes the
# logits. It computes the same loss and gradients in less memory, so this curve must lie on the
# last one.


# %%
def sums(model, batch):
    features = model(batch).reshape(-1, WIDTH)
    return linear_cross_entropy(
        features,
        model.embed.embedding[...],
        batch["targets"].reshape(-1),
        where=batch["mask"].reshape(-1),
        vocab_axis=0,
    )


def loss_without_logits(model, batch):
    ce = sums(model, batch)
    return ce.sum / ce.count


_, _, curves["+ loss without logits"] = train(shuffled(rows), tx, loss_without_logits)
muon_curve, same_curve = (
    np.array(list(c.values())) for c in list(curves.values())[-2:]
)
print(
    f"largest difference of the two curves: "
    f"{np.abs(muon_curve - same_curve).max():.4f} bits"
)
assert (
    np.abs(muon_curve - same_curve).max() < 0.05
)  # rounding of float32, over 60 steps
assert curves["+ packed rows"][STEPS] < curves["your loop"][STEPS]
assert curves["+ Muon"][STEPS] < curves["+ packed rows"][STEPS]

# %%
figure, axis = plt.subplots(figsize=(8, 3.8))
for (name, curve), style in zip(
    curves.items(), ("k-o", "C0-s", "C1-^", "C5:v"), strict=True
):
    axis.plot(curve.keys(), curve.values(), style, ms=4, lw=1.8, label=name)
axis.set(
    xlabel="step", ylabel="held-out loss (bits per byte)", title="one piece at a time"
)
axis.legend(frameon=False)
axis.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## Piece 4: a checkpoint store
#
# Orbax's manager saves the model and the optimizer. `Store` takes its place: same trees, and also
# the position in the data, as one commit with checksums.

# %%
state = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
with ocp.CheckpointManager(work / "orbax") as manager:
    manager.save(
        STEPS,
        args=ocp.args.Composite(
            **{k: ocp.args.StandardSave(v) for k, v in state.items()}
        ),
    )

data = batches(rows, global_batch=ROWS, seed=0)
model, optimizer, _ = train(data, tx, steps=20)
state = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
with Store(work / "run") as store:
    store.save(20, data=data, **state)
print(verify(work / "run"))

# %% [markdown]
# A fresh process would build model, optimizer and data anew, and restore. The next ten steps
# equal those of the run that went on, bit for bit.


# %%
def ten_more(model, optimizer, data):
    @nnx.jit
    def step(model, optimizer, batch):
        loss, grads = nnx.value_and_grad(loss_of_logits)(model, batch)
        optimizer.update(model, grads)
        return loss

    return [float(step(model, optimizer, next(data))) for _ in range(10)]


went_on = ten_more(model, optimizer, data)
(model, optimizer), data = build(tx), batches(rows, global_batch=ROWS, seed=0)
with Store(work / "run") as store:
    targets = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
    step, items = store.restore(data=data, **targets)
nnx.update(model, items["model"])
nnx.update(optimizer, items["optimizer"])
assert ten_more(model, optimizer, data) == went_on
print(f"restored step {step}; ten more losses are equal, the last is {went_on[-1]:.4f}")

# %% [markdown]
# ## Or the whole loop
#
# The trainer takes the same module, optimizer and rows. Its loss returns a sum and a count, so
# four microbatches give the gradient of the whole batch, however full each of them is. A mean of
# their means would not.


# %%
def sum_and_count(model, batch, *, key):
    ce = sums(model, batch)
    return ce.sum, ce.count


def fit(accumulate):
    trainer = Trainer(tx, sum_and_count, accumulate=accumulate)
    data = batches(rows, global_batch=ROWS, seed=0)
    result = trainer.fit(Model(rngs=nnx.Rngs(0)), data, steps=20)
    return nnx.state(trainer.model(result.state)), result.scalars["loss"]


(whole, loss), (split, split_loss) = fit(1), fit(4)
difference = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), whole, split)
largest = max(jax.tree.leaves(difference))
print(
    f"loss {loss:.4f} and {split_loss:.4f}; "
    f"largest difference of a parameter {largest:.1e}"
)
assert abs(loss - split_loss) < 1e-2
assert largest < 1e-2  # 20 steps of float32 rounding, under Muon

# %%
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Put a `Guard` around the optimizer, as in [optimizers](optimizers.ipynb).
# - [Break a run](damage_and_resume.ipynb) and see what the store finds.
# - [Mix two corpora](mixtures.ipynb) in place of the single one here.
# - [Attention](attention.ipynb) takes the place of `jax.nn.dot_product_attention`.
