# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Differences of two descriptions; test_resume.py has those that runs meet."""

import functools

import jax.numpy as jnp
import optax
from flax import nnx

from dovetail_train import Trainer
from dovetail_train.contract import compare, description


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(1)


def scaled(model, *, by):
    model.kernel.set_value(model.kernel[...] * by)


def _described(**options):
    begin = Trainer(optax.sgd(0.1), _loss, **options)._begin(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    return description(begin.programs, begin.definition, begin.target)


def test_another_change_after_the_update_is_logged():
    half, whole = (_described(after_update=functools.partial(scaled, by=x)) for x in (0.5, 1.0))
    (difference,) = compare(whole, half)
    assert str(difference) == "after_update scaled.by 1.0 is now 0.5"
    assert difference.rule.verdict == "logged"
    (difference,) = compare(_described(), half)
    assert difference.rule.entry == "after_update"
    assert compare(half, half) == []


def test_a_run_saved_before_the_option_has_none():
    saved = _described()
    del saved["after_update"]
    assert compare(saved, _described()) == []
