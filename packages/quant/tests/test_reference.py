# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The oracle itself against NumPy; `test_testing` runs the suite on it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.api import Matmul
from dovetail_quant.matmul.reference import Reference
from dovetail_quant.testing import problem


def test_has_a_gradient_in_scales() -> None:
    given = problem(Spec(weight="int4", group=3), rows=2, shape=(6, 5))
    x = given.x.astype(np.float64)

    def loss(scale: jax.Array) -> jax.Array:
        return Reference()(jnp.asarray(given.x), given.codes.replace(scale=scale)).sum()

    levels = np.asarray(given.codes.qvalue).astype(np.float64).reshape(2, 3, 5)
    expected = np.einsum("rgk,gkn->gn", x.reshape(2, 2, 3), levels)
    # float32 sums of 6 terms.
    np.testing.assert_allclose(jax.grad(loss)(given.codes.scale), expected, 1e-5, 1e-4)


def test_double_precision() -> None:
    given = problem(Spec(), rows=2, shape=(6, 5))
    with jax.enable_x64(True):
        y = Reference()(jnp.asarray(given.x, jnp.float64), given.codes)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, given.x.astype(np.float64) @ given.w, 1e-13, 1e-11)


def test_is_a_matmul_of_one_matrix() -> None:
    assert isinstance(Reference(), Matmul)
    stack = jax.tree.map(lambda a: a[None], problem(Spec(), rows=2, shape=(6, 5)).codes)
    message = r"codes \[K, N\] of one matrix, got codes=\(1, 6, 5\); write jax.vmap\(matmul.prep"
    with pytest.raises(ValueError, match=message):
        Reference().prepare(stack)
