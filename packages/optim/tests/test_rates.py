# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import optax
import pytest

from dovetail_optim import (
    accumulate,
    by_tokens,
    compress,
    decay,
    guard,
    muon,
    route,
    soap,
    split_master,
    wsd,
)
from dovetail_optim.rates.rates import rates

WSD = wsd(0.02, warmup=10, total=2000, cooldown=50, floor=0.001)
AS_TEXT = "0 to 0.02 to 0.001 in 2,000 steps"
COSINE = optax.cosine_decay_schedule(1e-3, 100)


def _rate_at(step):
    return 0.5


CASES = {
    "adamw": (lambda: optax.adamw(1e-3, weight_decay=0.1), ("0.001", "0.1")),
    "adamw, masked": (
        lambda: optax.adamw(WSD, weight_decay=0.3, mask=lambda p: p),
        (AS_TEXT, "0.3"),
    ),
    "a schedule of Optax": (lambda: optax.adamw(COSINE), ("cosine_decay_schedule", "0.0001")),
    "a function": (lambda: optax.sgd(_rate_at), ("_rate_at", "-")),
    "injected": (lambda: optax.inject_hyperparams(optax.adamw)(2e-3), ("0.002", "0.0001")),
    "muon": (lambda: muon(WSD, weight_decay=0.01), (AS_TEXT, "0.01")),
    "soap": (lambda: soap(1e-3), ("0.001", "0")),
    "by tokens": (lambda: muon(by_tokens(WSD, per_step=4)), (AS_TEXT[:-5] + "tokens", "0")),
    "decay": (lambda: decay(0.2), ("-", "0.2")),
    "cautious decay": (
        lambda: decay(0.2, mode="cautious", learning_rate=WSD),
        (AS_TEXT, "0.2"),
    ),
    "adam and decay": (lambda: optax.chain(optax.adam(3e-3), decay(1e-4)), ("0.003", "0.0001")),
    "nested chains": (
        lambda: optax.chain(
            optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam()),
            optax.chain(optax.scale_by_schedule(WSD), optax.scale(-1.0)),
        ),
        (AS_TEXT, "-"),
    ),
    "two groups": (
        lambda: route([("a", optax.sgd(0.1)), ("**", optax.sgd(0.2))]),
        ("0.2, 0.1", "-"),
    ),
    "compressed": (lambda: compress(optax.adamw(2e-3)), ("0.002", "0.0001")),
    "guarded, in microbatches": (
        lambda: guard(accumulate(split_master(optax.adamw(5e-4)), every=2)),
        ("0.0005", "0.0001"),
    ),
    "jitted": (
        lambda: optax.GradientTransformation(optax.sgd(0.4).init, jax.jit(optax.sgd(0.4).update)),
        ("0.4", "-"),
    ),
    "nothing to read": (optax.identity, ("unknown", "unknown")),
    "a closure with other names": (
        lambda: optax.stateless(lambda updates, params: updates),
        ("unknown", "unknown"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rates_are_read_off_closures(case):
    make, expected = CASES[case]
    assert rates(make()) == expected
