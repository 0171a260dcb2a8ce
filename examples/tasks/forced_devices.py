# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import json
import os
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # before JAX

import optax

from dovetail_checkpoint import Store
from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_models import init, llama
from dovetail_train import Trainer, lm_loss, make_mesh

files = text(Path(json.__file__).parent, pattern="*.py")
rows = pack(write(files, "corpus", encoder=Text(Bytes())), length=128, seed=0)
config = llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128)

for steps, mesh in ((10, make_mesh(fsdp=8)), (20, None)):  # None: one device
    model, data = init(config, mesh=mesh, seed=0), batches(rows, global_batch=8, seed=0)
    with Store("run") as store:
        trainer = Trainer(optax.adamw(3e-3), lm_loss(), mesh=mesh)
        result = trainer.fit(model, data, steps=steps, store=store)
    print(f"step {result.step} on {trainer.mesh.size} devices")
# prints: step 20 on 1 devices
