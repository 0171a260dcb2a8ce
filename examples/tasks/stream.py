# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax

import dovetail_kernels
from dovetail_data import Bytes
from dovetail_infer import Engine, Sampling
from dovetail_models import init, llama
from dovetail_train import Trainer, lm_loss

ids = np.array([[256, *b"To be, or not to be: that is the question.", 257]], np.int32)
batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": np.ones((1, 43), "f4")}
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
trainer = Trainer(optax.adamw(1e-2), lm_loss())
model = trainer.model(trainer.fit(model, [batch] * 60, steps=60).state)

sizes = {"max_length": 64, "step_tokens": 64, "max_rows": 4}  # small: it starts sooner
greedy = Sampling(max_tokens=40, temperature=0)
engine = Engine(model, tokenizer=Bytes(), operations=dovetail_kernels, **sizes)
with engine, engine.stream("To be", greedy) as stream:
    for piece in stream:
        print(piece.text, end="", flush=True)
# prints: , or not to be: that is the question.
