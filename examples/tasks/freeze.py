# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax

from dovetail_models import diff, init, llama
from dovetail_train import Trainer, lm_loss

ids = np.random.default_rng(0).integers(0, 256, (8, 129), np.int32)
batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": np.ones((8, 128), "f4")}
model = init(llama(vocab_size=258, embed=64, depth=2, heads=4, mlp=128), seed=0)

trained = ["layers.1.**", "lm_head.**"]  # all others are frozen
trainer = Trainer(optax.adamw(3e-3), lm_loss(), trainable=trained)
result = trainer.fit(model, [batch] * 5, steps=5)
print(diff(model, trainer.model(result.state)))
# prints: 11 parameters with equal values
