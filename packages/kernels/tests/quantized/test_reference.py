# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The formula, apart from the conformance suite: its gradient by finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from dovetail_kernels.quantized import reference
from dovetail_kernels.quantized.api import quantized_matmul
from dovetail_kernels.quantized.pack import pack_weights

pytestmark = pytest.mark.thorough

RNG = np.random.default_rng(0)
W = RNG.standard_normal((16, 7)).astype(np.float32)


@pytest.mark.parametrize("options", [{"bits": 4, "group_size": 8}, {"bits": 16}])
def test_the_gradient_is_that_of_the_values(options: dict) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(RNG.standard_normal((3, 16)))
        call = functools.partial(quantized_matmul, w=pack_weights(W, **options), impl="reference")
        check_grads(call, (x,), order=1, modes=["rev"])


def test_backward_is_the_product_with_the_transpose() -> None:
    packed = pack_weights(W)
    dy = RNG.standard_normal((3, 7)).astype(np.float32)
    weights = np.asarray(packed.values, np.float64) * np.asarray(packed.scales, np.float64)
    # 7 terms of rounding 2^-24 each.
    np.testing.assert_allclose(
        reference.backward(jnp.asarray(dy), packed), dy @ weights, rtol=1e-5, atol=1e-6
    )
