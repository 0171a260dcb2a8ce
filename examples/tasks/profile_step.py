# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

from collections import Counter
from pathlib import Path

import jax
import numpy as np
import optax

from dovetail_models import init, llama
from dovetail_train import Trace, Trainer, lm_loss

ids = np.random.default_rng(0).integers(0, 256, (8, 129), np.int32)
batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": np.ones((8, 128), "f4")}
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
trace = Trace("trace", start=5, steps=5)
Trainer(optax.adamw(3e-3), lm_loss()).fit(model, [batch] * 12, steps=12, hooks=[trace])

(file,) = Path("trace").rglob("*.xplane.pb")  # XProf draws it; Perfetto the .json.gz
planes, spent = jax.profiler.ProfileData.from_file(str(file)).planes, Counter()
lines = [line for plane in planes for line in plane.lines]
for event in (e for line in lines if "XLA" in line.name for e in line.events):
    spent[event.name] += event.duration_ns / 5e6  # ms a step
print(*[row for row in spent.most_common(20) if "::" not in row[0]], sep="\n")
print("steps:", sum(event.name == "train" for line in lines for event in line.events))
# prints: steps: 5
