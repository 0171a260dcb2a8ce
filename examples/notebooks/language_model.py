# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # From text to a trained language model
#
# The sources of Python's standard library become a corpus, the corpus packed rows, and a small
# Llama learns to write Python, in a minute on a CPU. Six libraries take part, and none knows the
# others: they exchange an iterator of dicts of NumPy arrays, a Flax module, an Optax transformation
# and a checkpoint.

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
import bz2
import gzip
import json
import lzma
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import optax

from dovetail_checkpoint import Store
from dovetail_data import Text, batches, pack, show, text, token_bytes, train_bpe, write
from dovetail_infer import Sampling
from dovetail_kernels import attention
from dovetail_models import describe, init, llama, load, save
from dovetail_optim import muon, route, wsd
from dovetail_stack.progress import Bar
from dovetail_stack.recipes.engine import engine
from dovetail_train import BitsPerByte, Eval, Jsonl, Trainer, lm_loss, read_jsonl

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white", "axes.grid": True})

# %% [markdown]
# ## Data
#
# Any directory of text works. Every tenth file is held out; the model never sees it. The tokenizer
# learns its vocabulary from the training files alone.

# %%
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)
library = Path(json.__file__).parent.parent
packages = (
    "asyncio",
    "concurrent",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "unittest",
)
files = sorted(
    f for p in packages for f in library.glob(f"{p}/*.py") if f.stat().st_size
)
held_out, training = files[::10], [f for i, f in enumerate(files) if i % 10]

tokenizer = train_bpe(
    (f.read_text("utf-8") for f in training), work / "bpe", vocab_size=512
)
corpora = {
    name: write(text(part), work / name, encoder=Text(tokenizer))
    for name, part in {"training": training, "held_out": held_out}.items()
}
rows = {name: pack(corpus, length=128, seed=0) for name, corpus in corpora.items()}
for name, corpus in corpora.items():
    size = (
        f"{len(corpus)} files, {corpus.text_bytes / 1e3:.0f} kB, {corpus.tokens} tokens"
    )
    print(f"{name}: {size}; {len(rows[name])} rows, {rows[name].fill:.1%} full")

# %% [markdown]
# A row can hold several documents, and the model must not look from one into another. `show` prints
# rows as the model gets them; this is the first with several documents.

# %%
packed = (str(show(rows["training"], [i])) for i in range(len(rows["training"])))
print(next(row for row in packed if row.count("  document ") > 1))

# %% [markdown]
# ## Model and optimizer
#
# A Llama in miniature. Muon moves the matrices of its layers, Adam everything else; `route` assigns
# parameters by name, and a pattern that matches nothing is an error.

# %%
config = llama(
    vocab_size=tokenizer.vocab_size,
    embed=96,
    depth=2,
    heads=4,
    kv_heads=2,
    mlp=256,
    tie=True,
)
model = init(config, seed=0)
describe(model)

# %%
STEPS, STOPPED = 200, 120
rate = {
    peak: wsd(peak, warmup=10, total=STEPS, cooldown=STEPS // 2, floor=peak / 20)
    for peak in (0.02, 5e-3)
}
tx = optax.chain(
    optax.clip_by_global_norm(1.0),
    route(
        [
            ("layers.**.kernel", muon(rate[0.02], dtype=np.float32)),
            ("**", optax.adam(rate[5e-3], b2=0.95)),
        ]
    ),
)

# %% [markdown]
# ## Training
#
# The loss returns a sum and the count that divides it, so accumulation and sharding are exact.
# Every 40 steps `Eval` measures bits per byte of the held-out files: unlike the loss per token, it
# does not depend on the tokenizer. `stop` is asked after each step, usually for the flag of a
# signal handler; here it ends the first session early.

# %%
loss = lm_loss(attention=attention)
evaluation = Eval(
    list(batches(rows["held_out"], global_batch=8, seed=None, epochs=1)),
    every=40,
    metrics={"bits_per_byte": BitsPerByte(token_bytes(tokenizer), attention=attention)},
)


def train(steps, stop=None):
    trainer = Trainer(tx, loss)
    with Store(work / "run/checkpoints") as store, Bar(steps=steps) as bar:
        result = trainer.fit(
            model,
            batches(rows["training"], global_batch=16, seed=0),
            steps=steps,
            store=store,
            sinks=[Jsonl(work / "run/metrics.jsonl"), bar],
            hooks=[evaluation],
            stop=stop,
        )
    return trainer.model(result.state), result


_, first = train(STEPS, stop=lambda step: step == STOPPED)
assert first.interrupted
print("interrupted after step", first.step)

# %% [markdown]
# The same call continues from the checkpoint: weights, moments, random keys, and the position in
# the data. [A killed run](damage_and_resume.ipynb) shows that not a bit differs from a run without
# a break.

# %%
trained, second = train(STEPS)
lines = read_jsonl(work / "run/metrics.jsonl")
losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
bits = {line["step"]: b for line in lines if (b := line.get("eval/bits_per_byte"))}
assert list(losses) == list(range(STEPS))
print(f"{second.step} steps, {bits[STEPS]:.3f} bits per byte of the held-out files")

# %% [markdown]
# ## What it learned
#
# A language model is a compressor: bits per byte are what an arithmetic coder would need with it.
# So the general compressors are fair opponents, on the same held-out files. With more parameters
# and three times the steps, the quickstart of the repository passes all three.

# %%
content = b"".join(f.read_bytes() for f in held_out)
compressed = {
    "gzip": len(gzip.compress(content, 9)),
    "bzip2": len(bz2.compress(content, 9)),
    "xz": len(lzma.compress(content, preset=9)),
}
others = {name: 8 * size / len(content) for name, size in compressed.items()}

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2))
left.plot(
    list(losses), np.array(list(losses.values())) / np.log(2), lw=1, label="training"
)
left.axvline(STOPPED, color="black", ls=":", label="stopped and resumed")
left.set(xlabel="step", ylabel="bits per token", title="Loss", xlim=(0, STEPS))
left.legend()
right.plot(list(bits), list(bits.values()), "o-", label="this model")
for number, (name, value) in enumerate(others.items(), 1):
    right.axhline(value, color=f"C{number}", ls="--", label=name)
right.set(xlabel="step", ylabel="bits per byte", title="Held-out files", ylim=(0, None))
right.legend()
fig.tight_layout()
plt.show()

# %%
for name, value in {"this model": bits[STEPS], **others}.items():
    print(f"{name:<12}{value:.3f} bits per byte")
assert bits[STEPS] < bits[40]

# %% [markdown]
# Samples from the model, by the [engine](engine.ipynb) of dovetail-infer. So little training gives
# the look of Python, and no sense.

# %%
prompts = ["def __init__(self", "class ", "    if not "]
sampling = Sampling(max_tokens=60, temperature=0.7, top_p=0.9, seed=0)
with engine(trained, tokenizer=tokenizer, max_rows=4) as opened:
    for prompt, completion in zip(
        prompts, opened.generate(prompts, sampling), strict=True
    ):
        print(prompt + completion.text, end="\n\n---\n\n")

# %% [markdown]
# ## Take it elsewhere
#
# The result is a Hugging Face directory: transformers opens it, with the same logits. Loaded here
# again, it is the same model to the bit.

# %%
save(trained, work / "hf")
again = load(work / "hf")
tokens = np.array([tokenizer.encode(["import os"])[0].ids], np.int32)
np.testing.assert_array_equal(again(tokens), trained(tokens))
print(sorted(file.name for file in (work / "hf").iterdir()))
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Your own text: let `files` be any UTF-8 files. `dovetail train pretrain --text DIR --out RUN
#   --minutes 10` does all of the above in one command.
# - [Other optimizers](optimizers.ipynb) on the same problem, with states in 8 bits.
# - [The same model in a sixth of its bytes](quantization.ipynb).
# - [Several corpora in one run](mixtures.ipynb), and [the quickstart](../../README.md).
