# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The output error against the outputs themselves."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_quant import codes
from dovetail_quant.methods.absmax import absmax, measured
from dovetail_quant.reconstruct import channel_errors, check_operands, report
from dovetail_quant.spec import Spec


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


def test_round_to_nearest_is_measured() -> None:
    x, w, _ = (a.astype(np.float32) for a in _problem())
    spec = Spec(weight="int4", group=4)
    q, r = measured(jnp.asarray(w), jnp.asarray(x.T @ x), spec)
    np.testing.assert_array_equal(q.qvalue, absmax(jnp.asarray(w), spec).qvalue)
    error = ((x.astype(np.float64) @ (np.asarray(codes.dequantize(q)) - w)) ** 2).sum()
    np.testing.assert_allclose([r.error, r.nearest], error, rtol=1e-3)
    assert r.kept == 5


def test_a_site_without_rows_has_no_relative_error() -> None:
    _, w, _ = _problem()
    _, r = measured(jnp.asarray(w, jnp.float32), jnp.zeros((12, 12)), Spec())
    assert r.relative == 0


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"matrix \[K, N\].*shape=\(2, 3, 4\).*jax.vmap"):
        check_operands(jnp.zeros((2, 3, 4)), jnp.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"shape=\(3, 4\).*shape=\(4, 4\); .*width 3"):
        check_operands(jnp.zeros((3, 4)), jnp.zeros((4, 4)))
