# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A model in a sixth of its bytes, with the cost measured
#
# A small language model is trained, then quantized in several ways. Each is measured on text that
# neither training nor calibration saw, a picture shows what a byte buys, and the chosen model is
# saved, loaded and asked to write.

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
from itertools import islice
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import dovetail_quant as quant
from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_infer import Sampling
from dovetail_models import abstract, init, llama
from dovetail_stack.progress import Bar
from dovetail_stack.recipes.engine import engine
from dovetail_train import Trainer, lm_loss

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white", "axes.grid": True})

# %% [markdown]
# ## A model to quantize
#
# A byte-level Llama learns the source of `argparse`. The last eighth of the file is held out.

# %%
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)
source = Path(argparse.__file__).read_text("utf-8")
cut = len(source) * 7 // 8
rows = {}
for name, part in {"training": source[:cut], "held_out": source[cut:]}.items():
    (work / f"{name}.txt").write_text(part, encoding="utf-8")
    corpus = write(text(work / f"{name}.txt"), work / name, encoder=Text(Bytes()))
    rows[name] = pack(corpus, length=64)

config = llama(
    vocab_size=Bytes().vocab_size, embed=64, depth=2, heads=4, mlp=128, tie=True
)
trainer = Trainer(optax.adam(3e-3), lm_loss())
with Bar(steps=200) as bar:
    data = batches(rows["training"], global_batch=16, seed=0)
    result = trainer.fit(init(config, seed=0), data, steps=200, sinks=[bar])
model = trainer.model(result.state)
print(f"trained to {result.scalars['loss']:.3f} nats a byte")

# %% [markdown]
# ## Plan, calibrate, apply, report
#
# A rule gives a pattern of paths and a `Spec`; the first match decides, and a rule without a match
# is an error. `**` leaves embedding and head in float, since they lose most; a rule of their name
# quantizes them. GPTQ needs inputs, so batches of the training text run through the model.

# %%
seen = list(islice(batches(rows["training"], global_batch=16, seed=1), 8))
unseen = list(batches(rows["held_out"], global_batch=16, seed=None, epochs=1))


four_bits = quant.Spec(weight="int4", group=32, method="gptq")
plan = quant.plan(model, [("embed", quant.Spec()), ("**", four_bits)])
small = quant.apply(model, quant.calibrate(model, plan, seen))
report = quant.report(model, small, unseen)
assert report.bytes_after < 0.2 * report.bytes_before
report

# %% [markdown]
# The divergence (KL) compares both models' predictions at each position: 0 says that they agree.
# Unlike the loss, it cannot fall by luck.
#
# ## Choose by a picture
#
# The same for other specs, rounded to nearest: that needs no calibration.

# %%
reports = {"int4 by 32, GPTQ; embedding int8": report}
for name, spec in {
    "int8": quant.Spec(),
    "int4 by 32": quant.Spec(weight="int4", group=32),
    "nf4 by 32": quant.Spec(weight="nf4", group=32),
}.items():
    rounded = quant.apply(model, quant.plan(model, [(("**", "embed"), spec)]))
    reports[name] = quant.report(model, rounded, unseen)

# %% [markdown]
# One spec for all sites is seldom best. `search` predicts the cost of each choice at each site with
# one backward pass, takes the best plan under a limit of bytes, and measures it.

# %%
limit = int(0.2 * report.bytes_before)
choices = [four_bits, quant.Spec(), None]
where = ("**", "embed")
best = quant.search(
    model, seen, max_bytes=limit, choices=choices, key=jax.random.key(0), where=where
)
print(best.plan)
chosen = quant.apply(model, best.calibration)
reports["search"] = quant.report(model, chosen, unseen)

# %%
fig, ax = plt.subplots(figsize=(8, 4.4))
for marker, (name, r) in zip("os^vP", reports.items(), strict=True):
    ax.plot(
        r.bytes_after / 1e3, r.kl, marker, ms=11 if name == "search" else 9, label=name
    )
curve = np.array([(size / 1e3, kl) for size, kl in best.curve(40) if kl > 0]).T
ax.plot(*curve, color="0.5", lw=1.2, zorder=0, label="predicted by search")
ax.axvline(limit / 1e3, color="black", ls=":", label="limit given to search")
ax.set(
    xlabel="parameters (kB)", ylabel="divergence (nats per byte of text)", yscale="log"
)
ax.set(title=f"What a byte buys; float32 has {report.bytes_before / 1e3:.0f} kB")
ax.set_xlim(0.9 * min(r.bytes_after for r in reports.values()) / 1e3, 150)
ax.legend(fontsize=9)
plt.show()

# %% [markdown]
# Down and to the left is better. A point above the line pays more than it must for its bytes.
#
# The report of the searched plan, site by site:

# %%
assert reports["search"].bytes_after <= limit
reports["search"]

# %% [markdown]
# ## Save, load, generate
#
# Codes are saved in a canonical form, independent of the product that will read them, and loaded
# bit for bit onto a model without arrays.

# %%
quant.save(chosen, work / "quantized")
loaded = quant.load(work / "quantized", abstract(config))
tokens = seen[0]["tokens"]
np.testing.assert_array_equal(loaded(tokens), chosen(tokens))
on_disk = sum(f.stat().st_size for f in (work / "quantized").rglob("*") if f.is_file())
print(
    f"{on_disk / 1e3:.0f} kB on disk, "
    f"{reports['search'].bytes_before / 1e3:.0f} kB in float32"
)
for name, decoder in {"float32": model, "quantized": loaded}.items():
    with engine(decoder, tokenizer=Bytes(), max_rows=1) as opened:
        (completion,) = opened.generate(
            ["    def add_"], Sampling(max_tokens=60, temperature=0)
        )
    print(f"--- {name}\n    def add_{completion.text}")

# %% [markdown]
# `explain` names the product that each site uses on this machine, with the reason.

# %%
print(*quant.explain(loaded, rows=1)[:3], sep="\n")

# %% [markdown]
# ## Train on top
#
# Adapters (QLoRA) train above the codes, which do not change: eight passes over the calibration's
# batches. The filter `nnx.LoRAParam` selects them.

# %%
adapted = quant.qlora.insert(small, rank=4, alpha=8.0, rngs=nnx.Rngs(1))
tuner = Trainer(optax.adam(3e-3), lm_loss(), trainable=nnx.LoRAParam)
losses = []


class Losses:
    """A sink is any object with this method."""

    def write(self, step, scalars):
        if "loss" in scalars:
            losses.append(scalars["loss"])


tuner.fit(adapted, seen * 8, steps=64, sinks=[Losses()])
assert np.mean(losses[-8:]) < np.mean(losses[:8])
print(f"{np.mean(losses[:8]):.3f} to {np.mean(losses[-8:]):.3f} nats a byte")
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Other limits: let `limit` be a tenth, or half, of the bytes in float32.
# - `dovetail quantize RUN --out OUT --bits 4 --text DIR` does this for a trained run.
# - [A Hugging Face directory](hugging_face.ipynb) in, surgery, and out again.
# - [What quantization promises and measured](../../packages/quant/README.md).
