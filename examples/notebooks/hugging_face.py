# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A Hugging Face directory in, surgery and LoRA, out again
#
# A directory of `config.json`, `model.safetensors` and `tokenizer.json` is planned, loaded and
# described. Adapters teach the model another text, layers and vocabulary change, and it leaves as
# another directory, which transformers opens with the same logits.

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
import importlib.util
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType

from dovetail_data import Pretrained, Text, batches, pack, text, train_bpe, write
from dovetail_models import (
    abstract,
    attention,
    dense_kv,
    describe,
    diff,
    explain,
    flops,
    init,
    kv_bytes,
    llama,
    load,
    lora,
    relayer,
    resize_vocab,
    save,
)
from dovetail_stack.progress import Bar
from dovetail_train import Eval, Jsonl, Trainer, lm_loss, read_jsonl

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white", "axes.grid": True})

# %% [markdown]
# ## A directory to begin with
#
# Nothing is downloaded: a small Llama learns the source of `argparse`, and is saved with its
# tokenizer. If you have a directory of a real model, let `base` be its path and skip this cell.

# %%
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)
base = work / "base"
texts = {
    "argparse": [Path(argparse.__file__)],
    "json": sorted(f for f in Path(json.__file__).parent.glob("*.py")),
}
contents = [f.read_text("utf-8") for files in texts.values() for f in files]
tokenizer = train_bpe(contents, work / "bpe", vocab_size=384)


def rows_of(name):
    return pack(
        write(text(texts[name]), work / name, encoder=Text(tokenizer)), length=64
    )


def train(model, name, steps, **options):
    trainer = Trainer(options.pop("tx"), lm_loss(), **options.pop("trainer", {}))
    data = batches(rows_of(name), global_batch=8, seed=0)
    with Bar(steps=steps) as bar:
        sinks = [*options.pop("sinks", ()), bar]
        result = trainer.fit(model, data, steps=steps, sinks=sinks, **options)
    return trainer.model(result.state)


config = llama(
    vocab_size=tokenizer.vocab_size,
    embed=64,
    depth=4,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp=128,
)
save(train(init(config, seed=0), "argparse", 120, tx=optax.adamw(3e-3)), base)
for file in (work / "bpe").iterdir():
    file.rename(base / file.name)
print(sorted(file.name for file in base.iterdir()))

# %% [markdown]
# ## Look before you load
#
# The headers of the files suffice for a plan and a description, here sharded over eight devices
# that this machine does not have. Nothing is ignored: an unknown key or tensor is an error.

# %%
print(str(explain(base))[:900])

# %%
mesh = AbstractMesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
config = abstract(base).config
print(
    f"{flops(config, tokens=512, length=512) / 1e9:.3f} GFLOPs for a step on 512 tokens"
)
print(f"{kv_bytes(config, dtype=jnp.bfloat16)} bytes of cache per token")
describe(abstract(base), mesh=mesh)

# %% [markdown]
# ## Load and decode
#
# A model maps tokens to logits. Attention and cache are arguments, so the same module decodes:
# eight tokens at once, then one at a time from the cache, give the logits of the whole sequence.
# With `mesh=` each device reads its own part of the files.

# %%
devices = jax.make_mesh((len(jax.devices()),), ("fsdp",), axis_types=(AxisType.Auto,))
model = load(base, mesh=devices)
tokenizer = Pretrained(base)
ids = tokenizer.encode(["def add_argument(self, *args, **kwargs):"])[0].ids[:12]
tokens = jnp.asarray([ids], jnp.int32)
whole = model(tokens)

count = len(ids)
positions = jnp.arange(count)[None]
kv = dense_kv(config, rows=1, length=count)
x, kv = model.features(
    tokens[:, :8], positions=positions[:, :8], attention=attention, kv=kv
)
logits = [model.head(x)]
for i in range(8, count):
    step = slice(i, i + 1)
    x, kv = model.features(
        tokens[:, step], positions=positions[:, step], attention=attention, kv=kv
    )
    logits.append(model.head(x))
np.testing.assert_allclose(jnp.concatenate(logits, axis=1), whole, atol=1e-4)
print("cached decoding gives the logits of the whole sequence")

# %% [markdown]
# ## Adapters
#
# Functions of surgery take a model and return a new one, so the old one remains for comparison.
# `lora.insert` puts adapters on q and v of every layer; before training they do not change a bit of
# the logits. The trainer moves them alone, on another text: the package `json`.

# %%
model = load(base)
adapted = lora.insert(model, "layers.*.attn.{q,v}", rank=4, alpha=8, rngs=nnx.Rngs(1))
np.testing.assert_array_equal(adapted(tokens), model(tokens))
hooks = [
    Eval(
        list(batches(rows_of(name), global_batch=8, seed=None, epochs=1))[:20],
        every=20,
        metrics={name: lm_loss()},
    )
    for name in texts
]
adapted = train(
    adapted,
    "json",
    100,
    tx=optax.adam(1e-2),
    trainer={"trainable": nnx.LoRAParam},
    sinks=[Jsonl(work / "lora.jsonl")],
    hooks=hooks,
)
assert not diff(lora.remove(adapted), model)  # the base did not move

# %%
lines = read_jsonl(work / "lora.jsonl")
curves = {
    name: np.array(
        [(x["step"], x[f"eval/{name}"]) for x in lines if f"eval/{name}" in x]
    ).T
    for name in texts
}
assert curves["json"][1][-1] < curves["json"][1][0]
merged = lora.merge(adapted)
np.testing.assert_allclose(merged(tokens), adapted(tokens), atol=1e-4)


def kernel(m):
    return np.asarray(m.layers[0].attn.q.kernel[...])


fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for name, style in {"json": "o-", "argparse": "s--"}.items():
    left.plot(*curves[name], style, label=name)
left.set(xlabel="step", ylabel="loss (nats per token)", title="Adapters learn json")
left.legend()
values = np.linalg.svd(kernel(merged) - kernel(model), compute_uv=False)
right.semilogy(range(1, 17), np.maximum(values[:16], 1e-9), "o")
right.set(
    xlabel="singular value",
    ylabel="size",
    title="The change of layers.0.attn.q has rank 4",
)
fig.tight_layout()
plt.show()

# %% [markdown]
# Saved alone, adapters are a directory for PEFT. Merged, they are part of the kernels.

# %%
lora.save_peft(adapted, work / "adapter", base="base")
again = lora.load_peft(model, work / "adapter")
np.testing.assert_array_equal(again(tokens), adapted(tokens))
print(sorted(file.name for file in (work / "adapter").iterdir()))

# %% [markdown]
# ## Surgery
#
# Drop a layer, repeat another, and add tokens to the vocabulary, each the mean of the old ones. The
# configuration follows, so the result is saved like any other model. `diff` says what changed.

# %%
edited = resize_vocab(relayer(merged, [0, 1, 1, 3]), 400)
save(edited, work / "edited")
reloaded = load(work / "edited")
np.testing.assert_array_equal(reloaded(tokens), edited(tokens))
assert reloaded.config.vocab_size == 400
assert not diff(base, base)
print(diff(base, work / "edited"))

# %% [markdown]
# ## Compared with transformers
#
# Where transformers and torch are installed, they open the edited directory and compute the same
# logits.

# %%
if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    theirs = transformers.LlamaForCausalLM.from_pretrained(work / "edited")
    with torch.no_grad():
        expected = theirs(
            torch.tensor(np.array(tokens), dtype=torch.long)
        ).logits.numpy()
    np.testing.assert_allclose(
        edited(tokens), expected, atol=2e-5
    )  # float32 sums, other orders
    print(f"largest difference: {np.abs(edited(tokens) - expected).max():.1e}")
else:
    print("not compared: pip install transformers torch, then run this cell again")
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - A model of your own: let `base` be its directory; `dovetail models inspect DIR` describes it.
# - [Quantize it](quantization.ipynb), or [put it on eight devices](eight_devices.ipynb).
# - [Families, and what each of them promises](../../packages/models/README.md).
