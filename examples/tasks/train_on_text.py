# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import optax

from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_models import init, llama, save
from dovetail_train import Console, Trainer, lm_loss

files = text(Path(json.__file__).parent, pattern="*.py")  # any folder of text
corpus = write(files, "corpus", encoder=Text(Bytes()))
rows = batches(pack(corpus, length=128, seed=0), global_batch=8, seed=0)

model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
trainer = Trainer(optax.adamw(3e-3), lm_loss())
result = trainer.fit(model, rows, steps=60, sinks=[Console(every=20)])
save(trainer.model(result.state), "model")  # transformers opens this folder
print(f"loss {result.scalars['loss']:.1f}")
# prints: loss 2.6
