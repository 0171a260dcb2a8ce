# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import optax

import dovetail_quant as quant
from dovetail_models import init, llama
from dovetail_train import Trainer, lm_loss

ids = np.array([[256, *b"To be, or not to be: that is the question.", 257]], np.int32)
batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": np.ones((1, 43), "f4")}
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
trainer = Trainer(optax.adamw(1e-2), lm_loss())
model = trainer.model(trainer.fit(model, [batch] * 60, steps=60).state)

plan = quant.plan(model, [("**", quant.Spec(weight="int4", group=32))])
print(plan)
small = quant.apply(model, plan)
quant.save(small, "small")
report = quant.report(model, small, [batch])
print(report)
print(f"likeliest tokens that stay the same: {report.top1:.2f}")
# prints: likeliest tokens that stay the same: 1.00
