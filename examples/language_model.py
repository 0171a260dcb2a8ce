# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A language model, stopped and resumed
#
# Text becomes a corpus, the corpus packed rows, and a small Llama trains on them. The run stops
# half-way and resumes; the losses equal an uninterrupted run, bit for bit. Four packages exchange
# only an iterator of dicts of NumPy arrays, an NNX module, an Optax transformation and a
# checkpoint.

# %%
import json
from pathlib import Path

import numpy as np
import optax

from dovetail_checkpoint import Store
from dovetail_data import Bytes, Text, batches, pack, text, token_bytes, write
from dovetail_models import init, llama, save, size
from dovetail_train import BitsPerByte, Eval, Jsonl, Trainer, lm_loss, read_jsonl

# %% [markdown]
# Any directory of text works; a package of the standard library is always available. One file is
# held out. A byte tokenizer needs no training.

# %%
files = sorted(Path(json.__file__).parent.glob("*.py"))
tokenizer = Bytes()
corpora = {
    name: write(text(some), name, encoder=Text(tokenizer))
    for name, some in {"train": files[1:], "held_out": files[:1]}.items()
}
rows = {name: pack(corpus, length=128) for name, corpus in corpora.items()}
for name, corpus in corpora.items():
    fill = rows[name].fill
    print(f"{name}: {len(corpus)} documents, {corpus.text_bytes} bytes, rows {fill:.0%} full")

# %%
config = llama(
    vocab_size=tokenizer.vocab_size, embed=64, depth=2, heads=4, kv_heads=2, mlp=128, tie=True
)
print(size(config), "parameters")


# %% [markdown]
# The trainer takes any NNX module, any Optax transformation, and any loss that returns a sum and a
# count. It calls `stop` after every step, usually a signal handler's flag.


# %%
def run(name, *, steps, stop=None):
    trainer = Trainer(optax.adamw(3e-3), lm_loss())
    held_out = list(batches(rows["held_out"], global_batch=4, seed=None, epochs=1))
    with Store(f"{name}/checkpoints") as store:
        result = trainer.fit(
            init(config, seed=0),
            batches(rows["train"], global_batch=8, seed=0),
            steps=steps,
            store=store,
            sinks=[Jsonl(f"{name}/metrics.jsonl")],
            hooks=[
                Eval(
                    held_out,
                    every=steps,
                    metrics={"bits_per_byte": BitsPerByte(token_bytes(tokenizer))},
                )
            ],
            stop=stop,
        )
    return trainer.model(result.state), result


_, stopped = run("broken", steps=20, stop=lambda step: step == 9)
print("interrupted:", stopped.interrupted, "after step", stopped.step)
model, _ = run("broken", steps=20)
run("unbroken", steps=20)


# %%
def losses(name):
    return [line["loss"] for line in read_jsonl(f"{name}/metrics.jsonl") if "loss" in line]


assert losses("broken") == losses("unbroken")
print("losses:", np.round(losses("broken")[::5], 3))
print(read_jsonl("broken/metrics.jsonl")[-1])

# %% [markdown]
# The result is a Hugging Face directory: transformers opens it.

# %%
save(model, "exported")
print(sorted(file.name for file in Path("exported").iterdir()))
