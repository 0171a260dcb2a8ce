# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

from dovetail_optim._suggestions import suggests

PACKAGE = {
    "AdamW": "optax.adamw",
    "Adam": "optax.adam",
    "SGD": "optax.sgd",
    "Muon": "muon",
    "adamw": "optax.adamw",
    "adam": "optax.adam",
    "sgd": "optax.sgd",
    "MultiSteps": "accumulate(tx, every=...)",
    "multi_transform": "route(rules)",
}
_RATE = {"lr": "learning_rate", "wd": "weight_decay"}
muon = suggests(beta="momentum", mu="momentum", ns_steps="ns=, coefficients for each step", **_RATE)
soap = suggests(precondition_frequency="refresh", beta1="b1", beta2="b2", **_RATE)
wsd = suggests(
    peak_value="peak",
    lr="peak",
    learning_rate="peak",
    warmup_steps="warmup",
    total_steps="total",
    steps="total",
    decay_steps="cooldown=, the steps of the decay, and total=, all steps",
    end_value="floor",
)
accumulate = suggests(k="every", steps="every", every_k_schedule="every", accumulate="every")
call = suggests()
