# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import pytest

from dovetail_train import Metrics
from dovetail_train.metrics import first_non_finite, is_finite


def test_the_first_leaf_with_a_nan_or_an_infinity_is_named():
    tree = {"a": {0: jnp.ones(3)}, "b": jnp.arange(2), "c": jnp.array([1.0, jnp.inf])}
    assert first_non_finite(tree) == "c"
    assert first_non_finite({**tree, "a": {0: jnp.array([jnp.nan])}}) == "a.0"
    assert first_non_finite({"b": tree["b"]}) is None


def test_the_first_gradient_that_is_not_finite_is_named():
    metrics = Metrics(scalars={}, grad_norms=jnp.array([1.0, jnp.nan, jnp.inf]))
    params = {"a": jnp.ones(1), "b": {"k": jnp.ones(2)}, "c": jnp.ones(1)}
    assert metrics.non_finite_gradient(params) == "the gradient of b.k"


@pytest.mark.parametrize("loss, norm, finite", [(2.0, 1.0, True), (float("nan"), 1.0, False)])
def test_loss_and_gradient_must_both_be_finite(loss, norm, finite):
    assert is_finite({"loss": loss, "grad_norm": norm}) is finite
    assert is_finite({"loss": norm, "grad_norm": loss}) is finite
