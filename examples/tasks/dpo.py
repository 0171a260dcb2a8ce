# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import optax

from dovetail_data import Bytes, Preference, batches, jsonl, pairs, write
from dovetail_models import init, llama
from dovetail_train import Trainer
from dovetail_tune import dpo, with_reference

records = [
    {"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "?"} for n in range(8)
]
Path("pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
corpus = write(jsonl("pairs.jsonl"), "pairs", encoder=Preference(Bytes()))
rows = batches(pairs(corpus, length=16), global_batch=16, seed=0)  # 8 pairs

model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
data = with_reference(rows, model)  # its log-probabilities before the training
trainer = Trainer(optax.adamw(1e-3), dpo(beta=0.1))
result = trainer.fit(model, data, steps=20)
print({name: round(value, 2) for name, value in result.scalars.items()})
print(f"chosen above rejected: {result.scalars['loss/accuracy']:.2f}")
# prints: chosen above rejected: 1.00
