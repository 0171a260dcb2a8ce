# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_tune import Metric, mean_loss


def _loss(model, batch, *, key):
    del key
    square, other = (model(batch["x"]) ** 2).sum(), model(batch["x"]).sum()
    return {
        "square": (square, jnp.float32(3)),
        "metric": Metric(other, jnp.float32(2)),
        "none": (square * jnp.nan, jnp.float32(0)),
    }


@pytest.fixture
def model():
    return nnx.Linear(2, 1, rngs=nnx.Rngs(0))


BATCH = {"x": np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)}


def test_terms_are_divided_by_their_counts_and_added(model):
    square = float((model(BATCH["x"]) ** 2).sum())
    value, means = mean_loss(_loss)(model, BATCH)
    assert float(value) == pytest.approx(square / 3, rel=1e-6)
    assert float(means["metric"]) == pytest.approx(float(model(BATCH["x"]).sum()) / 2, rel=1e-6)
    assert float(means["none"]) == 0


def test_weights_replace_those_of_the_terms(model):
    value, means = mean_loss(_loss, weights={"square": 0.0, "metric": 0.5})(model, BATCH)
    assert float(value) == pytest.approx(0.5 * float(means["metric"]), rel=1e-6)


def test_a_single_term_and_its_gradient(model):
    def loss(model, batch, *, key):
        assert key == 3
        return model(batch["x"]).sum(), jnp.float32(3)

    (value, means), grads = nnx.value_and_grad(mean_loss(loss), has_aux=True)(model, BATCH, 3)
    assert means == {"loss": value}
    np.testing.assert_allclose(grads["kernel"][...][:, 0], BATCH["x"].mean(0), rtol=1e-6)


def test_an_unknown_weight_is_refused_with_the_terms(model):
    message = r"weights must name terms of the loss, got kl; use some of metric, none, square"
    with pytest.raises(ValueError, match=message):
        mean_loss(_loss, weights={"kl": 1.0})(model, BATCH)
