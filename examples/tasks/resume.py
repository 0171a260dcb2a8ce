# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import jax
import optax

from dovetail_checkpoint import Store
from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_models import init, llama
from dovetail_train import Trainer, lm_loss

files = text(Path(json.__file__).parent, pattern="*.py")
rows = pack(write(files, "corpus", encoder=Text(Bytes())), length=128, seed=0)
config = llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128)


def train(run, stop=None):  # one call starts a run, and goes on after a kill
    data, model = batches(rows, global_batch=8, seed=0), init(config, seed=0)
    trainer = Trainer(optax.adamw(3e-3), lm_loss())
    with Store(run) as store:
        options = {"steps": 20, "store": store, "save_every": 5, "stop": stop}
        return jax.tree.leaves(trainer.fit(model, data, **options).state.params)


train("stopped", stop=lambda step: step == 12)
resumed, through = train("stopped"), train("through")
equal = [(a == b).all() for a, b in zip(resumed, through, strict=True)]
print("equal to the bit:", bool(all(equal)))
# prints: equal to the bit: True
