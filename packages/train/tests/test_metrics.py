# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import pytest

from dovetail_train import Metrics
from dovetail_train.step.metrics import first_non_finite, is_finite


def test_the_first_leaf_with_a_nan_or_an_infinity_is_named():
    tree = {"a": {0: jnp.ones(3)}, "b": jnp.arange(2), "c": jnp.array([1.0, jnp.inf])}
    assert first_non_finite(tree) == "c"
    assert first_non_finite({**tree, "a": {0: jnp.array([jnp.nan])}}) == "a.0"
    assert first_non_finite({"b": tree["b"]}) is None


def test_gradient_norms_are_named_those_that_are_not_finite_first():
    metrics = Metrics(scalars={}, grad_norms=jnp.array([1.0, jnp.nan, 3.0]))
    params = {"a": jnp.ones(1), "b": {"k": jnp.ones(2)}, "c": jnp.ones(1)}
    norms = metrics.gradient_norms(params)
    assert list(norms) == ["b.k", "c", "a"]
    assert norms["c"] == 3.0


def test_the_mean_of_nothing_is_left_out():
    scalars = {"loss": 1.0, "loss/a": 0.0, "count/a": 0.0, "loss/b": 0.0, "count/b": 2.0}
    found = Metrics(scalars=scalars, grad_norms=jnp.zeros(0)).read()
    assert found == {"loss": 1.0, "count/a": 0.0, "loss/b": 0.0, "count/b": 2.0}


@pytest.mark.parametrize("loss, norm, finite", [(2.0, 1.0, True), (float("nan"), 1.0, False)])
def test_loss_and_gradient_must_both_be_finite(loss, norm, finite):
    assert is_finite({"loss": loss, "grad_norm": norm}) is finite
    assert is_finite({"loss": norm, "grad_norm": loss}) is finite
