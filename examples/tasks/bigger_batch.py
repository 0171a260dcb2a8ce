# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax

from dovetail_models import init, llama
from dovetail_train import Precision, Trainer, estimate, lm_loss

ids = np.random.default_rng(0).integers(0, 256, (32, 129), np.int32)
mask = np.ones((32, 128), "float32")
batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask}
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)

half = Precision(compute="bfloat16")  # parameters and optimizer stay float32
plain = Trainer(optax.adamw(3e-3), lm_loss())
small = Trainer(optax.adamw(3e-3), lm_loss(), accumulate=8, precision=half)
for name, trainer in (("plain", plain), ("small", small)):
    kept = estimate(trainer, model, batch).residual_bytes / 2**20
    loss = trainer.fit(model, [batch] * 2, steps=2).scalars["loss"]
    print(f"{name}: loss {loss:.2f}, {kept:.1f} MiB kept for the backward pass")
# prints: small: loss 5.47, 5.4 MiB kept for the backward pass
