# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import jax
import numpy as np
import optax

from dovetail_models import abstract, llama
from dovetail_train import Trainer, abstract_mesh, estimate, lm_loss

sizes = {
    "vocab_size": 128_256,
    "embed": 4096,
    "heads": 32,
    "kv_heads": 8,
    "mlp": 14_336,
}
model = abstract(llama(depth=32, **sizes)).configure(scan=True)  # 8 B, without arrays
ids = jax.ShapeDtypeStruct((8, 4096), np.int32)
mask = jax.ShapeDtypeStruct((8, 4096), np.float32)
batch = {"tokens": ids, "targets": ids, "mask": mask}

mesh = abstract_mesh(8, device="H200")  # or "A100-80GB", "TPU v5e"
needed = estimate(Trainer(optax.adamw(1e-4), lm_loss(), mesh=mesh), model, batch)
print(needed)
print("does it fit?", needed.fits, "It does with", needed.remedies[0].code)
# prints: does it fit? False It does with model.configure(scan=True, remat=True)
