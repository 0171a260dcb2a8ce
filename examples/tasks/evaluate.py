# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import optax

from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_models import init, llama
from dovetail_train import Console, Eval, Trainer, lm_loss


def rows_of(name, **options):
    files = text(Path(json.__file__).parent / name)
    corpus = write(files, name + ".corpus", encoder=Text(Bytes()))
    return batches(pack(corpus, length=128, seed=0), global_batch=8, seed=0, **options)


held_out = list(rows_of("encoder.py", epochs=1))  # a list: the same rows each time
evaluation = Eval(held_out, every=20, metrics={"loss": lm_loss()})
trainer = Trainer(optax.adamw(3e-3), lm_loss())
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
watch = {"hooks": [evaluation], "sinks": [Console(every=20)]}
result = trainer.fit(model, rows_of("decoder.py"), steps=60, **watch)
print(f"held out: {evaluation(trainer, result.state, result.step)['eval/loss']:.1f}")
# prints: held out: 2.5
