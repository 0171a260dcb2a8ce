# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Many prompts on one paged cache
#
# A small language model is trained, then an inference engine continues prompts with it: one, a
# batch, a stream. It scores text, takes new weights without a new compilation, and its event log
# shows how requests shared steps and pages.

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
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import dovetail_kernels
from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_infer import Engine, Sampling
from dovetail_models import init, llama
from dovetail_stack.progress import Bar
from dovetail_train import Trainer, lm_loss

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white", "axes.grid": True})

# %% [markdown]
# ## A model
#
# A byte-level Llama learns the source of `argparse`. Its end is held out.

# %%
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)
source = Path(argparse.__file__).read_text("utf-8")
cut = len(source) * 7 // 8
(work / "training.txt").write_text(source[:cut], encoding="utf-8")
corpus = write(text(work / "training.txt"), work / "corpus", encoder=Text(Bytes()))
config = llama(
    vocab_size=Bytes().vocab_size,
    embed=64,
    depth=2,
    heads=4,
    mlp=128,
    tie=True,
    max_length=256,
)
trainer = Trainer(optax.adam(3e-3), lm_loss())
rows = batches(pack(corpus, length=64), global_batch=16, seed=0)
STEPS = 100
with Bar(steps=STEPS) as bar:
    result = trainer.fit(init(config, seed=0), rows, steps=STEPS, sinks=[bar])
print(f"trained to {result.scalars['loss']:.3f} nats a byte")

# %% [markdown]
# ## An engine
#
# The engine discovers the cache of the decoder by tracing it, and computes what fits before it
# allocates. The cache here is small on purpose: 8 tokens a page, and three requests of the
# largest length. `events` receives each decision of the scheduler.

# %%
log, pages = [], []


def record(event):
    log.append(event)
    if event["event"] == "step":
        pages.append(engine.stats().pages[0])


engine = Engine(
    trainer.model(result.state),
    tokenizer=Bytes(),
    operations=dovetail_kernels,
    max_length=256,
    max_rows=8,
    step_tokens=64,
    page_size=8,
    kv_bytes=800_000,
    events=record,
)
print(engine.fit)

# %% [markdown]
# ## One prompt, and a stream
#
# A stream gives text when it is final: no half of a character, nothing of a stop string. Leaving
# its block ends the request.

# %%
(completion,) = engine.generate(
    ["    def add_"], Sampling(max_tokens=40, temperature=0)
)
print(completion.text, completion.finish_reason, sep="\n--- ")

# %%
with engine.stream(
    "class ", Sampling(max_tokens=60, temperature=0.7, seed=1, stop=":")
) as stream:
    print(*(piece.text for piece in stream), sep="·")
print(stream.completion.finish_reason, repr(stream.completion.stop))

# %% [markdown]
# ## A batch
#
# Twenty-four pieces of the held-out text, of 20 to 120 bytes, each with options of its own. They
# share steps, and what one gets does not depend on the others: alone it has the same tokens.

# %%
log.clear()
pages.clear()
rng = np.random.default_rng(0)
starts = rng.integers(cut, len(source) - 120, 24)
prompts = [source[start : start + rng.integers(20, 120)] for start in starts]
options = [
    Sampling(max_tokens=int(rng.integers(10, 90)), temperature=0.8, top_p=0.95, seed=i)
    for i in range(len(prompts))
]
completions = engine.generate(prompts, options)
events, held = list(log), list(pages)

for i in (3, 23):
    (alone,) = engine.generate(prompts[i : i + 1], options[i])
    np.testing.assert_array_equal(alone.tokens, completions[i].tokens)
    print(
        f"the same {len(alone.tokens)} tokens; "
        f"the cache had {alone.cached_tokens} of the prompt's"
    )

# %% [markdown]
# The log of the batch, as pictures. Each step reads up to 64 tokens of up to 8 requests: one of
# each request that writes, and prompts fill the rest. When no page is free, the youngest request
# gives its own to the others and is computed again later, with the same result. Pages of finished
# requests stay, for prompts that begin alike, until others need them.

# %%
lengths = {e["request_id"]: e["prompt_length"] for e in events if e["event"] == "add"}
steps = [e for e in events if e["event"] == "step" and e["rows"]]
read = {"prompts": [], "outputs": []}
spans = {}
for step, event in enumerate(steps):
    of_prompts = of_outputs = 0
    for request, _, start, count, _, _ in event["rows"]:
        inside = max(min(start + count, lengths[request]) - start, 0)
        of_prompts, of_outputs = of_prompts + inside, of_outputs + count - inside
        spans.setdefault(request, []).append(step)
    read["prompts"].append(of_prompts)
    read["outputs"].append(of_outputs)

fig, (top, middle, bottom) = plt.subplots(3, 1, figsize=(10, 8), sharex=True)
for row, (_, at) in enumerate(sorted(spans.items())):
    top.scatter(at, [row] * len(at), s=4, color="C0")
for step, event in enumerate(steps):
    for request in event["preempted"]:
        top.plot(step, sorted(spans).index(request), "kx")
top.set(ylabel="request", title="Requests in each step; a cross is a preemption")
middle.stackplot(range(len(steps)), *read.values(), labels=list(read), step="mid")
middle.set(ylabel="tokens", title="Tokens read by each step")
middle.legend(loc="upper right")
kinds = ("used", "cached", "free")
bottom.stackplot(
    range(len(held)),
    *([getattr(p, kind) for p in held] for kind in kinds),
    labels=list(kinds),
)
bottom.set(ylabel="pages", xlabel="step", title="Pages")
bottom.legend(loc="upper right")
fig.tight_layout()
plt.show()

# %% [markdown]
# ## Score text
#
# `score` gives the log-probability of each token. The first byte of a word costs most.

# %%
line = next(x for x in source[cut:].splitlines() if 40 < len(x.strip()) < 60)
(logps,) = engine.score([line])
fig, axes = plt.subplots(figsize=(10, 2.4))
axes.bar(range(len(line)), -logps / np.log(2))
axes.set_xticks(range(len(line)), list(line), family="monospace")
axes.set(ylabel="bits", title="Cost of each byte of a held-out line")
axes.grid(axis="x")
plt.show()

# %% [markdown]
# ## Swap weights
#
# The trainer goes on, and the engine takes its weights between two steps: a copy, since the next
# training step donates its state. Cached prefixes of older weights are not used. Programs stay:
# there is no new compilation.

# %%
held_out = source[cut:].encode()
chunks = [list(held_out[i : i + 200]) for i in range(0, 2000, 200)]


def bits_per_byte():
    return -np.concatenate(engine.score(chunks)).mean() / np.log(2)


state, curve = result.state, {0: bits_per_byte()}
compiled = engine.stats().compiled
for version in range(1, 6):
    for _ in range(20):
        state, _ = trainer.step(state, next(rows))
    engine.update_weights(nnx.state(trainer.model(state)), version=version)
    curve[version] = bits_per_byte()
assert engine.stats().compiled == compiled
(completion,) = engine.generate(
    ["    def add_"], Sampling(max_tokens=40, temperature=0)
)
assert set(completion.versions) == {5}

fig, axes = plt.subplots(figsize=(5, 2.8))
axes.plot(list(curve), list(curve.values()), "o-")
axes.set(
    xlabel="version of the weights",
    ylabel="bits per byte",
    title="Held-out text, by `score`",
)
plt.show()
assert curve[5] < curve[0]

# %%
stats = engine.stats()
print(
    f"{stats.steps} steps, {stats.drawn_tokens} tokens drawn, {stats.read_tokens} read,"
)
print(f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens from the cache,")
print(f"{stats.preemptions} preemptions; finished: {dict(stats.finished)}")
engine.close()
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - `dovetail generate RUN --prompts FILE.jsonl --out RESULTS.jsonl` does batches from files, and
#   resumes. [Generate text](../../docs/howto/generate.md)
# - [The same model in a sixth of its bytes](quantization.ipynb) runs in the same engine.
# - `python -m dovetail_infer.schedule.simulate` replays traces without a model, to plan capacity.
# - [The engine's options](../../packages/infer/README.md), each with the tests that hold it.
