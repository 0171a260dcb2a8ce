# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The output error against the outputs themselves."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_quant.methods.reconstruct import channel_errors, check_operands, report


def _problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 12)) @ rng.normal(size=(12, 12))
    return x, rng.normal(size=(12, 5)), 0.01 * rng.normal(size=(12, 5))


def test_errors_are_those_of_the_outputs() -> None:
    x, w, dw = (a.astype(np.float32) for a in _problem())
    gram = jnp.asarray(x.T @ x)
    expected = ((x.astype(np.float64) @ dw) ** 2).sum(0)
    errors = channel_errors(jnp.asarray(dw), gram)
    np.testing.assert_allclose(errors, expected, rtol=1e-4)  # float32 sums of 12 x 12 products
    r = report(jnp.asarray(w), gram, errors=errors, nearest=errors * 2, kept=3, damp=0.1)
    exact = np.linalg.norm(x.astype(np.float64) @ dw) / np.linalg.norm(x.astype(np.float64) @ w)
    np.testing.assert_allclose(r.relative, exact, rtol=1e-4)
    np.testing.assert_allclose([r.nearest, r.kept, r.damp], [2 * expected.sum(), 3, 0.1], rtol=1e-4)
    silent = report(jnp.asarray(w), 0 * gram, errors=0 * errors, nearest=0 * errors)
    assert silent.relative == 0


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"matrix \[K, N\].*shape=\(2, 3, 4\).*jax.vmap"):
        check_operands(jnp.zeros((2, 3, 4)), jnp.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"shape=\(3, 4\).*shape=\(4, 4\); .*width 3"):
        check_operands(jnp.zeros((3, 4)), jnp.zeros((4, 4)))
