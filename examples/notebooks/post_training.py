# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # SFT, then DPO
#
# A small language model learns to answer sums: first from examples in mixed formats, then from
# preferences between its own answers. A program checks each answer, so every stage has a score on
# held-out questions. It tells what the preferences improved, and what they did not.

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
import argparse
import itertools
import json
import re
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import dovetail_kernels
from dovetail_data import (
    Bytes,
    Chat,
    Preference,
    Template,
    Text,
    batches,
    jsonl,
    pack,
    pairs,
    text,
    write,
)
from dovetail_infer import Engine, Sampling
from dovetail_models import init, llama
from dovetail_optim import muon, route, wsd
from dovetail_stack.progress import Bar
from dovetail_train import Jsonl, Trainer, lm_loss, read_jsonl
from dovetail_tune import TRAINED, Frozen, Twin, dpo, explain

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white", "axes.grid": True})

# %% [markdown]
# ## A model that only continues text
#
# As in [the first notebook](language_model.ipynb), a Llama in miniature learns Python's source with
# Muon and Adam. To be quick, this one reads bytes, of one file, for a few steps.

# %%
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)
tokenizer = Bytes()
source = write(text(argparse.__file__), work / "source", encoder=Text(tokenizer))
config = llama(
    vocab_size=tokenizer.vocab_size,
    embed=96,
    depth=2,
    heads=4,
    mlp=192,
    tie=True,
    max_length=64,
)


def rate(peak, steps):
    return wsd(peak, warmup=10, total=steps, cooldown=steps // 2, floor=peak / 20)


def train(model, rows, *, steps):
    tx = route(
        [
            ("layers.**.kernel", muon(rate(0.02, steps), dtype=np.float32)),
            ("**", optax.adam(rate(5e-3, steps), b2=0.95)),
        ]
    )
    trainer = Trainer(optax.chain(optax.clip_by_global_norm(1.0), tx), lm_loss())
    with Bar(steps=steps) as bar:
        data = batches(rows, global_batch=12, seed=0)
        result = trainer.fit(model, data, steps=steps, sinks=[bar])
    print(f"trained to {result.scalars['loss']:.3f} nats a token")
    return trainer.model(result.state)


base = train(init(config, seed=0), pack(source, length=128), steps=40)

# %% [markdown]
# ## Questions, and examples in mixed formats
#
# The wanted answer is `ANSWER: ` and the digits of the sum. The examples are as if many people had
# written them: each sum is right, and only a third have that format. One sum in five is held out,
# in every wording.

# %%
WORDINGS = ("What is {} + {}?", "{} + {} =", "Add {} and {}.")
FORMATS = {"ANSWER: {}": 0.34, "It is {}.": 0.22, "{}": 0.22, "I think {}": 0.22}
rng = np.random.default_rng(0)
sums = rng.permutation(list(itertools.product(range(10), repeat=2))).tolist()
held_out, training = sums[:20], sums[20:]


def conversation(a, b):
    answer = rng.choice(list(FORMATS), p=list(FORMATS.values())).format(a + b)
    turns = {"user": rng.choice(WORDINGS).format(a, b), "assistant": answer}
    return {
        "messages": [
            {"role": role, "content": content} for role, content in turns.items()
        ]
    }


def to_file(name, records):
    (work / name).write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return jsonl(work / name)


template = Template(
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}Q: {{ m.content }}\nA: "
    "{% else %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% endif %}{% endfor %}",
    bos="<|bos|>",
    eos="<|eos|>",
)
conversations = to_file(
    "chats.jsonl", (conversation(*s) for _ in range(24) for s in training)
)
chats = write(conversations, work / "chats", encoder=Chat(tokenizer, template=template))
rows = pack(chats, length=128)

# %% [markdown]
# Only answers are trained, with the id that ends them. `explain` shows the batch as the loss sees
# it: which tokens carry loss (here between brackets), how full the rows are, and what may be cut.

# %%
print(
    explain(next(batches(rows, global_batch=12, seed=0)), tokenizer=tokenizer, rows=1)
)

# %% [markdown]
# ## Supervised fine-tuning
#
# SFT needs nothing new: it is the same trainer, with the same loss, on rows with a mask.

# %%
tuned = train(base, rows, steps=200)

# %% [markdown]
# An engine samples answers, at temperature 1: the distribution itself. It takes the weights of each
# stage without compiling again. An answer has the format if the whole of it matches; it is right if
# its only number is the sum.

# %%
engine = Engine(
    base,
    tokenizer=tokenizer,
    operations=dovetail_kernels,
    max_length=64,
    max_rows=64,
    kv_bytes=8_000_000,
)
PATTERN = re.compile(r"ANSWER: \d+")
questions = [
    (w.format(*s), sum(s)) for s in held_out for w in WORDINGS for _ in range(4)
]
scores = {}


def prompt(question):
    return f"Q: {question}\nA: "


def answers(asked, *, seed):
    options = Sampling(max_tokens=20, seed=seed)
    completions = engine.generate([prompt(question) for question in asked], options)
    return [completion.text for completion in completions]


def is_right(answer, total):
    return re.findall(r"\d+", answer) == [str(total)]


def evaluate(stage):
    texts = answers([question for question, _ in questions], seed=0)
    matched = np.array([PATTERN.fullmatch(t) is not None for t in texts])
    right = np.array(
        [is_right(t, total) for t, (_, total) in zip(texts, questions, strict=True)]
    )
    scores[stage] = {"format": matched.mean(), "right sum": right.mean()}
    scores[stage]["both"] = (matched & right).mean()
    print(
        f"{stage}: "
        + ", ".join(f"{name} {share:.0%}" for name, share in scores[stage].items())
    )
    for (question, _), answer in list(zip(questions, texts, strict=True))[::60]:
        print(f"  {question:18} {answer!r}")


evaluate("base")
engine.update_weights(nnx.state(tuned), version=1)
evaluate("SFT")

# %% [markdown]
# SFT imitates its examples, formats included, so fewer than half of the answers have the wanted
# one. More of the same examples would not change that.
#
# ## Preferences between the model's own answers
#
# The model answers each training question four times. An answer in the format is preferred to one
# without. Whether the sum is right plays no part.

# %%
asked = [(w.format(*s), sum(s)) for s in training for w in WORDINGS]
drawn = np.array(answers([q for q, _ in asked for _ in range(4)], seed=1000)).reshape(
    -1, 4
)
records, right = [], []
for (question, total), texts in zip(asked, drawn.tolist(), strict=True):
    good = [t for t in texts if PATTERN.fullmatch(t)]
    bad = [t for t in texts if not PATTERN.fullmatch(t)]
    for chosen, rejected in zip(good, bad, strict=False):
        records.append(
            {"prompt": prompt(question), "chosen": chosen, "rejected": rejected}
        )
        right.append([is_right(chosen, total), is_right(rejected, total)])
shares = np.mean(right, axis=0)
print(
    f"{len(records)} pairs; right sums: {shares[0]:.0%} of chosen, "
    f"{shares[1]:.0%} of rejected"
)

compared = write(
    to_file("pairs.jsonl", records), work / "pairs", encoder=Preference(tokenizer)
)
paired = pairs(compared, length=48)
print(
    explain(next(batches(paired, global_batch=32, seed=0)), tokenizer=tokenizer, rows=2)
)

# %% [markdown]
# ## Direct preference optimization
#
# DPO raises the probability of the chosen answer over that of the rejected one, relative to a
# reference: here a frozen twin of the model as SFT left it. The loss says that two rows belong
# together, so the trainer never parts them. It runs twice from there, once alone, and once with an
# SFT loss on the chosen answers beside it.

# %%
STEPS = 50
curves = {}


def prefer(stage, kind, version):
    tx = optax.adam(optax.cosine_decay_schedule(5e-4, STEPS))
    loss = dpo(beta=0.1, kind=kind, reference=Frozen())
    trainer = Trainer(tx, loss, trainable=TRAINED)
    with Bar(steps=STEPS) as bar:
        data = batches(paired, global_batch=32, seed=0)
        sinks = [Jsonl(work / f"{stage}.jsonl"), bar]
        result = trainer.fit(
            Twin(tuned, nnx.clone(tuned)), data, steps=STEPS, sinks=sinks
        )
    curves[stage] = [
        line for line in read_jsonl(work / f"{stage}.jsonl") if "loss" in line
    ]
    engine.update_weights(
        nnx.state(trainer.model(result.state).trained), version=version
    )
    evaluate(stage)


prefer("DPO", "sigmoid", version=2)
prefer("DPO and SFT", {"sigmoid": 1.0, "sft": 1.0}, version=3)

# %%
COLORS = {"base": "C2", "SFT": "C3", "DPO": "C0", "DPO and SFT": "C1"}
fig, axes = plt.subplots(figsize=(7, 3.2))
for number, (stage, shares) in enumerate(scores.items()):
    at = np.arange(len(shares)) + 0.22 * (number - 1.5)
    bars = axes.bar(at, shares.values(), 0.2, label=stage, color=COLORS[stage])
    axes.bar_label(bars, fmt="{:.0%}", fontsize=7)
axes.set_xticks(range(3), scores["base"])
axes.set(title=f"{len(questions)} answers to held-out questions", ylim=(0, 1.3))
axes.legend(ncols=2, fontsize=8)
plt.show()

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9))
for stage, lines in curves.items():
    steps = [line["step"] for line in lines]
    for name, style in {"margin": "-", "accuracy": ":"}.items():
        values = [line[f"loss/{name}"] for line in lines]
        left.plot(steps, values, style, color=COLORS[stage], label=f"{name}, {stage}")
    for name, style in {"chosen": "-", "rejected": ":"}.items():
        values = [line[f"loss/logps_{name}"] for line in lines]
        right.plot(steps, values, style, color=COLORS[stage], label=f"{name}, {stage}")
left.set(xlabel="step", title="Reward margin and accuracy")
right.set(xlabel="step", ylabel="nats an answer", title="Log-probabilities")
for axis in (left, right):
    axis.legend(fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# DPO alone does what the pairs ask: nine answers in ten have the format. The pairs do not ask for
# sums, and many that were right are lost. Most rejected answers have the right sum in another
# format, and its digits become less likely with the format. The chosen answers become less likely
# as well. The margin grows all the same, for it compares the two: a growing margin is no proof of
# better answers.
#
# With the SFT loss the chosen answers stay likely, the sums are nearly as good as before, and the
# answers with both double. Neither run improves the sums: preferences of format teach no
# arithmetic. The score is of 20 sums, so a few per cent are chance.

# %%
assert scores["base"]["format"] == 0
assert min(scores[stage]["format"] for stage in curves) > scores["SFT"]["format"] + 0.2
assert scores["DPO"]["right sum"] < scores["SFT"]["right sum"] - 0.1
assert scores["DPO and SFT"]["both"] > scores["SFT"]["both"] + 0.1
engine.close()
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - A preference for right sums too: take as good only answers with both.
# - The simpler method to compare with: `train` on the good answers alone, without rejected ones.
# - Another kind of loss, such as `kind="ipo"`, or no reference at all: `simpo`. [All
#   losses](../../packages/tune/README.md)
# - [Train a language model](language_model.ipynb) of more than a minute, and begin from that.
# - [Sample from it](engine.ipynb) with the options of the engine.
