# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wrappers refuse anything but a transformation; the numbers are tested with each optimizer."""

import jaxtyping
import optax
import pytest

from dovetail_optim import (
    Step,
    accumulate,
    compress,
    guard,
    split_master,
    stochastic_round,
    watch,
)
from dovetail_optim.route import with_extra_args

WRAPPERS = [
    guard,
    split_master,
    watch,
    compress,
    Step,
    lambda tx: accumulate(tx, every=2),
    lambda tx: stochastic_round(tx, seed=0),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_refuses_a_learning_rate(monkeypatch, wrap):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"have init and update, .* got 0.1; write optax.adamw"):
        wrap(0.1)


def test_an_optimizer_without_extra_arguments_takes_them():
    tx = with_extra_args(optax.sgd(0.5))
    updates, _ = tx.update({"w": 2.0}, tx.init({"w": 1.0}), None, value=3.0)
    assert updates == {"w": -1.0}
