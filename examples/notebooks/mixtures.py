# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Two corpora in one run, and the same run again
#
# Source code and questions about it become two corpora, packed into rows without waste and mixed
# with weights that change on the way. A small Llama trains on the mixture. The run stops in the
# middle of an epoch and resumes bit for bit; then the same rows are read by two hosts with another
# batch size.

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
import gzip
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.colors import ListedColormap

from dovetail_checkpoint import Store
from dovetail_data import (
    Bytes,
    Chat,
    Corpus,
    Stage,
    Template,
    Text,
    batches,
    budget,
    jsonl,
    mix,
    pack,
    pad,
    show,
    text,
    write,
)
from dovetail_models import init, llama
from dovetail_train import Jsonl, Trainer, lm_loss, read_jsonl

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.constrained_layout.use": True})
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)

# %% [markdown]
# ## Two corpora
#
# `write` encodes files once and stores them as a corpus. The first corpus is code: one document
# per file, one token per byte.

# %%
files = sorted(Path(ast.__file__).parent.glob("*.py"))[:60]
code = write(text(files), work / "code", encoder=Text(Bytes()))
print(f"{len(code)} documents, {code.tokens:,} tokens")

# %% [markdown]
# The second corpus is conversations: "What does this function do?", answered by its docstring. A
# chat template formats each one. The model learns only the text of the generation block, the
# answer and the end of the turn.


# %%
def conversations(file):
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.FunctionDef) and (answer := ast.get_docstring(node)):
            question = f"What does {node.name} in {file.stem} do?"
            yield [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]


with gzip.open(work / "questions.jsonl.gz", "wt", encoding="utf-8") as stream:
    for file in files:
        for messages in conversations(file):
            stream.write(json.dumps({"messages": messages}) + "\n")

template = Template(
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content + '\n' }}{% endif %}{% endfor %}",
    bos="<|bos|>",
    eos="<|eos|>",
)
questions = write(
    jsonl(work / "questions.jsonl.gz"),
    work / "questions",
    encoder=Chat(Bytes(), template=template),
)
print(
    f"{len(questions)} documents, {questions.tokens:,} tokens, "
    f"{questions.dropped} dropped"
)

# %% [markdown]
# ## Rows without waste
#
# A model reads rows of one length. With one document per row the longest document decides it, and
# most slots stay empty. `pack` puts several documents into a row, cuts the long ones, and loses
# no token. Each colour below is a document and white is an empty slot; `segment_ids` in the batch
# keep attention inside a document.

# %%
LENGTH = 256
layouts = {
    "pad": pad(questions, length=int(questions.lengths.max()) - 1),
    "pack": pack(questions, length=LENGTH),
}
colors = ListedColormap(plt.rcParams["axes.prop_cycle"].by_key()["color"])
figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
for panel, (name, rows) in zip(panels, layouts.items(), strict=True):
    segments = rows.batch(np.arange(24))["segment_ids"]
    before = np.cumsum(segments.max(axis=1)) - segments.max(
        axis=1
    )  # documents in earlier rows
    documents = np.where(segments > 0, (segments + before[:, None]) % 10, np.nan)
    panel.imshow(
        documents, cmap=colors, vmin=0, vmax=9, aspect="auto", interpolation="none"
    )
    panel.set(
        title=f"{name}: {len(rows):,} rows, {rows.fill:.1%} full",
        xlabel="slot (tokens)",
    )
panels[0].set_ylabel("row")
plt.show()

# %% [markdown]
# ## A mixture with two stages
#
# Three rows in ten are questions; from row 320 on, every second one. Nothing is copied or
# shuffled on disk: the mixture computes which row of which source stands at place n.


# %%
STEPS, ROWS = 60, 8


def mixture():
    rows = {
        name: pack(Corpus(work / name), length=LENGTH) for name in ("code", "questions")
    }
    later = Stage(start=320, weights={"code": 1, "questions": 1})
    return mix(rows, weights={"code": 7, "questions": 3}, stages=[later])


rows = mixture()
planned = budget(rows, steps=STEPS, global_batch=ROWS)
display(planned)

# %% [markdown]
# `budget` counts before a run what it will take from each source. A row as the model sees it:
# learnt text is between ⟦ and ⟧, special tokens between ⟨ and ⟩. Rows are numbered one source
# after the other, so the first question follows the last row of code.

# %%
print(show(rows, [len(rows.sources["code"])]))

# %% [markdown]
# ## The run, stopped and resumed
#
# A small Llama trains for 60 steps; `lm_loss(sources=)` also measures the loss of each source.
# The first run is not interrupted. The second is stopped after step 25, in the middle of the
# first epoch, and continues from its checkpoint, which holds the position in the data too.


# %%
NAMES = sorted(rows.sources)
config = llama(
    vocab_size=Bytes().vocab_size, embed=64, depth=2, heads=4, mlp=128, tie=True
)


def run(name, *, stop=None):
    trainer = Trainer(optax.adamw(3e-3), lm_loss(sources=NAMES))
    with Store(work / name / "checkpoints") as store:
        return trainer.fit(
            init(config, seed=0),
            batches(mixture(), global_batch=ROWS, seed=0),
            steps=STEPS,
            store=store,
            sinks=[Jsonl(work / name / "metrics.jsonl")],
            stop=stop,
        )


run("unbroken")
stopped = run("broken", stop=lambda step: step == 25)
print(f"interrupted: {stopped.interrupted}, after {stopped.step} steps")
resumed = run("broken")
print(f"resumed, now {resumed.step} steps")

# %%
curves = {
    name: [line for line in read_jsonl(work / name / "metrics.jsonl") if "loss" in line]
    for name in ("unbroken", "broken")
}
unbroken, broken = ([line["loss"] for line in lines] for lines in curves.values())
assert broken == unbroken
largest = np.abs(np.subtract(broken, unbroken)).max()
print(f"largest difference of a loss in {STEPS} steps: {largest}")

# %% [markdown]
# The orange dots lie exactly on the line: no batch is lost or repeated. On the right, the loss of
# each source.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
cut = stopped.step
left.plot(unbroken, color="C0", label="uninterrupted run")
left.plot(
    range(cut, STEPS), broken[cut:], "o", ms=3.5, color="C1", label="after the resume"
)
left.axvline(cut - 0.5, color="0.5", ls="--", lw=1)
left.set(
    xlabel="step", ylabel="loss (nats per learnt token)", title="stopped in mid-epoch"
)
for name, color in zip(NAMES, ("C0", "C5"), strict=True):
    losses = [line.get(f"loss/source/{name}", np.nan) for line in curves["unbroken"]]
    right.plot(losses, color=color, label=name)
right.set(xlabel="step", title="loss of each source")
for panel in (left, right):
    panel.legend(frameon=False)
plt.show()

# %% [markdown]
# ## What each source contributed
#
# Each batch names the source of its rows. Bars are rows per step, lines the sum since the start
# beside the exact plan: they never differ by as much as one row.

# %%
reader = batches(mixture(), global_batch=ROWS, seed=0)
drawn = np.stack(
    [np.bincount(next(reader)["source"], minlength=2) for _ in range(STEPS)]
)
shares = np.where(np.arange(STEPS * ROWS)[:, None] < 320, [0.7, 0.3], [1 / 2, 1 / 2])
plan = np.cumsum(shares, axis=0)[ROWS - 1 :: ROWS]
assert {s.name: s.rows for s in planned.sources} == dict(
    zip(NAMES, drawn.sum(0), strict=True)
)
assert np.abs(drawn.cumsum(0) - plan).max() < 1

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2))
left.bar(range(STEPS), drawn[:, 0], width=1, color="C0", label=NAMES[0])
left.bar(
    range(STEPS), drawn[:, 1], width=1, color="C5", bottom=drawn[:, 0], label=NAMES[1]
)
left.axvline(320 / ROWS - 0.5, color="k", ls="--", lw=1)
left.set(
    xlabel="step", ylabel="rows in the batch", title="the weights change at row 320"
)
left.legend(loc="lower left", framealpha=1)
for i, (name, color) in enumerate(zip(NAMES, ("C0", "C5"), strict=True)):
    right.plot(
        drawn[:, i].cumsum(), color=color, lw=3, alpha=0.5, label=f"{name}: drawn"
    )
    right.plot(plan[:, i], color="k", ls=":", lw=1.5, label="planned" if i else None)
right.set(xlabel="step", ylabel="rows so far", title="drawn and planned")
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The same rows on other machines
#
# The state of a data iterator is a row number and a fingerprint. Two hosts with 12 rows a step
# between them continue from the state of one host with 8, and read the same next 24 rows, across
# the change of weights at row 320.

# %%
one_host = batches(mixture(), global_batch=8, seed=0)
for _ in range(38):
    next(one_host)
saved = json.dumps(one_host.get_state())
expected = [next(one_host) for _ in range(3)]

two_hosts = [
    batches(mixture(), global_batch=12, seed=0, shard=(i, 2)) for i in range(2)
]
for host in two_hosts:
    host.set_state(json.loads(saved))
elsewhere = [next(host) for _ in range(2) for host in two_hosts]
for field in expected[0]:
    ours, theirs = (
        np.concatenate([batch[field] for batch in of]) for of in (expected, elsewhere)
    )
    assert ours.shape[0] == 24
    assert np.array_equal(ours, theirs), field
print("24 rows, equal in all fields:", ", ".join(expected[0]))
print("rows of each source so far:", two_hosts[0].stats().rows)

# %% [markdown]
# The corpora name the documents of any batch of any run. No log of the run is needed.

# %%
for spans in one_host.explain(45)[:4]:
    print(f"{spans[0].mixed:>9}:", [(Path(s.source).name, s.record) for s in spans[:4]])

# %% [markdown]
# A state that belongs to other data is refused, and the error names the difference.

# %%
other = batches(pack(Corpus(work / "code"), length=LENGTH), global_batch=8, seed=0)
try:
    other.set_state(json.loads(saved))
except ValueError as error:
    print(str(error).replace(str(work), "FOLDER"))
else:
    raise AssertionError("the state of another mixture was taken")

# %%
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Change the weights of the second stage, and look at the budget before you train.
# - Pack with `method="first_fit"` or `"concat"` and compare fill and picture.
# - Other notebooks: [language_model](language_model.ipynb) trains longer and writes text,
#   [damage_and_resume](damage_and_resume.ipynb) kills a run and flips a bit.
# - The documentation of dovetail-data describes mixtures, resuming and damage in full.
