# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses that name the rows they compare, or the weight of a term."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer
from dovetail_train.step.terms import BatchLoss, GroupLoss, group_rows

ROWS, WIDTH = 16, 5


def _batch(rng, mask):
    x = rng.normal(size=(ROWS, 3, WIDTH)).astype("f4")
    return {"x": x, "mask": mask.astype("f4")}


def _model():
    return nnx.Linear(WIDTH, 1, use_bias=False, rngs=nnx.Rngs(3))


def _preference(model, batch, *, key):
    """-log sigmoid of the margin of row 2i over row 2i + 1, as in DPO."""
    score = (model(batch["x"])[..., 0] * batch["mask"]).sum(1)
    losses = -jax.nn.log_sigmoid(score[0::2] - score[1::2])
    return losses.sum(), jnp.float32(losses.size)


def _paired(loss):
    @functools.wraps(loss)
    def paired(model, batch, *, key):
        return loss(model, batch, key=key)

    paired.rows = 2
    return paired


def _preference_gradient(kernel, batch):
    """Of the mean over pairs, in float64, by hand."""
    x, mask = batch["x"].astype(np.float64), batch["mask"].astype(np.float64)
    sums = (x * mask[..., None]).sum(1)
    apart = sums[0::2] - sums[1::2]
    push = -1 / (1 + np.exp(apart @ kernel.astype(np.float64)[:, 0]))
    return (push[:, None] * apart).mean(0)


@pytest.fixture
def pairs():
    rng = np.random.default_rng(5)
    return _batch(rng, rng.random((ROWS, 3)) < 0.7)


@pytest.mark.thorough
@pytest.mark.parametrize("accumulate", [1, 2, 4, 8])
def test_rows_that_belong_together_stay_together(accumulate, pairs):
    kernel = np.asarray(_model().kernel[...])
    expected = _preference_gradient(kernel, pairs)
    trainer = Trainer(optax.sgd(1.0), _paired(_preference), accumulate=accumulate)
    after, metrics = trainer.step(trainer.init(_model()), pairs)
    close = {"rtol": 2e-5, "atol": 2e-6 * np.abs(expected).max()}  # 8 terms in another order
    np.testing.assert_allclose(kernel[:, 0] - after.params["kernel"][:, 0], expected, **close)
    assert metrics.read()["grad_norm"] == pytest.approx(np.linalg.norm(expected), rel=1e-5)


def test_without_rows_pairs_are_torn(pairs):
    kernel = np.asarray(_model().kernel[...])
    trainer = Trainer(optax.sgd(1.0), _preference, accumulate=2)
    after, _ = trainer.step(trainer.init(_model()), pairs)
    torn = kernel[:, 0] - after.params["kernel"][:, 0]
    expected = _preference_gradient(kernel, pairs)
    assert np.abs(torn - expected).max() > 0.05 * np.abs(expected).max()


def test_a_batch_that_would_split_a_group_is_refused(pairs):
    trainer = Trainer(optax.sgd(1.0), _paired(_preference), accumulate=4)
    state = trainer.init(_model())
    part = {name: x[:12] for name, x in pairs.items()}
    with pytest.raises(ValueError, match=r"the loss's rows 4 × 1 × 2 = 8, got rows=12; use 8"):
        trainer.step(state, part)


def test_the_rows_of_a_loss_are_seen_through_partial_and_wraps():
    loss = _paired(_preference)
    assert isinstance(loss, GroupLoss)
    assert group_rows(_preference) == 1
    assert group_rows(functools.partial(functools.partial(loss), key=None)) == 2
    assert group_rows(functools.wraps(loss)(lambda model, batch, *, key: None)) == 2


@pytest.mark.parametrize("rows", [0, -2, 2.0, True, "2"])
def test_the_rows_of_a_loss_are_a_positive_number(rows):
    loss = _paired(_preference)
    loss.rows = rows
    with pytest.raises(ValueError, match=r"number of rows .*got loss.rows=.*; write loss.r"):
        Trainer(optax.sgd(1.0), loss)


class _Half(NamedTuple):
    """A term of another library, with a weight of its own."""

    sum: Any
    count: Any
    default_weight = 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize(("weights", "factor"), [({}, 0.5), ({"half": 2.0}, 2.0)])
def test_a_term_may_have_a_weight_of_its_own(accumulate, weights, factor, pairs):
    def loss(model, batch, *, key):
        total, count = _preference(model, batch, key=key)
        return {"half": _Half(total, count)}

    kernel = np.asarray(_model().kernel[...])
    expected = factor * _preference_gradient(kernel, pairs)
    trainer = Trainer(optax.sgd(1.0), _paired(loss), accumulate=accumulate, weights=weights)
    after, metrics = trainer.step(trainer.init(_model()), pairs)
    close = {"rtol": 2e-5, "atol": 2e-6 * np.abs(expected).max()}  # 8 terms in another order
    np.testing.assert_allclose(kernel[:, 0] - after.params["kernel"][:, 0], expected, **close)
    scalars = metrics.read()
    assert scalars["loss"] == pytest.approx(factor * scalars["loss/half"], rel=1e-6)


def test_a_loss_over_the_whole_batch_refuses_microbatches(pairs):
    loss = _paired(_preference)
    loss.whole_batch = True
    assert isinstance(loss, BatchLoss)
    for each in (loss, functools.partial(loss)):
        with pytest.raises(ValueError, match=r"compares all rows .*got accumulate=2; pass accum"):
            Trainer(optax.sgd(1.0), each, accumulate=2)
    trainer = Trainer(optax.sgd(1.0), loss)
    assert np.isfinite(trainer.step(trainer.init(_model()), pairs)[1].read()["loss"])
    loss.whole_batch = False
    Trainer(optax.sgd(1.0), loss, accumulate=2)
