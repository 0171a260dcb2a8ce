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
sampling = Sampling(max_tokens=40, temperature=0.5, seed=1, stop=["."])
with Engine(model, tokenizer=Bytes(), operations=dovetail_kernels, **sizes) as engine:
    for completion in engine.generate(["To be", "To be, or"], sampling):
        print(completion.finish_reason, completion.logprobs.mean(), completion.text)
# prints: stop -0.00  not to be: that is the question
