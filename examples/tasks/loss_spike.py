# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import numpy as np
import optax

from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_models import init, llama
from dovetail_train import Jsonl, Trainer, lm_loss, read_jsonl

odd = np.random.default_rng(0).integers(0x4E00, 0x9FFF, 300)  # a file unlike the others
Path("odd.txt").write_text("".join(map(chr, odd)), encoding="utf-8")
files = [*Path(json.__file__).parent.glob("*.py"), "odd.txt"]
corpus = write(text(files), "corpus", encoder=Text(Bytes()))
data = batches(pack(corpus, length=128, seed=0), global_batch=4, seed=0)
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
sinks = [Jsonl("metrics.jsonl")]
Trainer(optax.adamw(3e-3), lm_loss()).fit(model, data, steps=60, sinks=sinks)

losses = [line["loss"] for line in read_jsonl("metrics.jsonl")[:60]]
step = max(range(10, 60), key=lambda n: losses[n] - losses[n - 1])
documents = {span.document for row in data.explain(step) for span in row}
names = [Path(corpus.source(document)[0]).name for document in documents]
print(f"the loss of step {step} jumped; its documents:", names)
print("the odd one is there:", "odd.txt" in names)
# prints: the odd one is there: True
