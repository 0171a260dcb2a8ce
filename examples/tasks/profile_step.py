# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax

from dovetail_models import init, llama
from dovetail_profile import read
from dovetail_train import Trace, Trainer, lm_loss

ids = np.random.default_rng(0).integers(0, 256, (8, 129), np.int32)
batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": np.ones((8, 128), "f4")}
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
trace = Trace("trace", start=5, steps=5)
Trainer(optax.adamw(3e-3), lm_loss()).fit(model, [batch] * 12, steps=12, hooks=[trace])

profile = read("trace")
print(profile.ops("scope").top(10))  # by layer; "source" for lines, "op" for operations
print("steps:", len(profile.steps()))
# prints: steps: 5
