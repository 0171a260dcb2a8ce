# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Differences of two descriptions; test_resume.py has those that runs meet."""

import functools
import logging

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import OrbaxStore, Trainer
from dovetail_train.resume.contract import between, compare, description


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(1)


def scaled(model, *, by):
    model.kernel.set_value(model.kernel[...] * by)


def _described(**options):
    return _described_with(optax.sgd(0.1), **options)


def _described_with(tx, **options):
    begin = Trainer(tx, _loss, **options)._begin(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    return description(begin.options, begin.definition, begin.target)


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


def test_between_processes_functions_may_differ_and_settings_and_arrays_may_not():
    first = _described(after_update=functools.partial(scaled, by=0))
    own = _described(after_update=functools.partial(scaled, by=1), seed=1, ema=0.5)
    assert between(first, own) == [
        (False, "seed", "0", "1"),
        (False, "ema", "None", "0.5"),
        (True, "after_update scaled.by", "0", "1"),
    ]
    assert between(first, first) == []


def test_between_processes_another_optimizer_is_refused_if_its_arrays_differ():
    sgd, sign, adam = map(_described_with, (optax.sgd(0.1), optax.sign_sgd(0.1), optax.adam(0.1)))
    assert [may_be_equal for may_be_equal, *_ in between(sgd, sign)] == [True]
    assert [may_be_equal for may_be_equal, *_ in between(sgd, adam)] == [False]


class _Sized:
    """Batches of the given rows, again and again."""

    def __init__(self, sizes):
        self._sizes, self.i = sizes, 0

    def __iter__(self):
        return self

    def __next__(self):
        rows = self._sizes[self.i % len(self._sizes)]
        self.i += 1
        return {"x": np.random.default_rng(self.i).normal(size=(rows, 3)).astype("f4")}

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


@pytest.mark.parametrize(
    "before, after, told",
    [
        ([4], [2], "from step 3 on the run has other settings: rows of a batch 4 is now 2"),
        pytest.param([4], [4], None, marks=pytest.mark.thorough),
        pytest.param([4, 4, 1], [2], None, marks=pytest.mark.thorough),
        pytest.param([4, 4, 1], [8], "rows of a batch 1 to 4 is now 8", marks=pytest.mark.thorough),
    ],
)
def test_another_number_of_rows_is_told_at_the_first_batch(before, after, told, tmp_path, caplog):
    warnings = []
    for steps, sizes in ((3, before), (4, after), (5, after)):
        caplog.clear()
        trainer, model = Trainer(optax.sgd(0.1), _loss), nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        trainer.fit(model, _Sized(sizes), steps=steps, store=OrbaxStore(tmp_path / "run"))
        records = [r for r in caplog.records if r.name.startswith("dovetail_train")]
        warnings.append([r.getMessage() for r in records if r.levelno >= logging.WARNING])
    assert [len(lines) for lines in warnings] == [0, told is not None, 0]  # it is told once
    assert all(told in line for line in warnings[1])
