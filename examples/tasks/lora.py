# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax
from flax import nnx

from dovetail_models import describe, init, llama, lora, save
from dovetail_train import Trainer, lm_loss

ids = np.random.default_rng(0).integers(0, 256, (8, 129), np.int32)
batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": np.ones((8, 128), "f4")}
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)

where = "layers.*.attn.{q,v}"
adapted = lora.insert(model, where, rank=4, alpha=8, rngs=nnx.Rngs(0))
trainer = Trainer(optax.adamw(3e-3), lm_loss(), trainable="**.lora_*")
adapted = trainer.model(trainer.fit(adapted, [batch] * 20, steps=20).state)
print(describe(adapted, only=nnx.LoRAParam))

merged = lora.merge(adapted)  # plain layers again
save(merged, "merged")  # transformers opens this folder
difference = abs(adapted(ids) - merged(ids)).max()
print("equal logits:", bool(difference < 1e-4))
# prints: equal logits: True
