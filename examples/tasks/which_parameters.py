# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import optax
from flax import nnx

from dovetail_models import abstract, llama
from dovetail_optim import explain, muon, route

model = abstract(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128))
params = nnx.state(model, nnx.Param)  # shapes; no array is made
rules = [
    ("layers.*.{attn,mlp}.*.kernel", muon(0.02), "muon"),
    ("**.scale", optax.adam(1e-3), "norms"),
    ("**", optax.adamw(3e-3), "rest"),
]
table = explain(rules, params)
print(table)
optimizer = route(rules)  # for Trainer(optimizer, loss), or for a loop of Optax

try:
    explain([("layers.*.mpl.**", optax.sgd(0.1)), *rules], params)
except ValueError as error:
    print(error)
print("by the first rule:", sum(row.pattern == rules[0][0] for row in table.rows))
# prints: by the first rule: 7
