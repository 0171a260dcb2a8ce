# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_models.layers.patch import Patches


def test_patches_are_a_convolution_without_overlap():
    rng = np.random.default_rng(0)
    patches = Patches(3, 2, 5, std=0.3, rngs=nnx.Rngs(1))
    patches.bias[...] = jnp.asarray(rng.standard_normal(5), jnp.float32)
    # 3 divides neither 8 nor 10: a convolution leaves the last pixels out.
    images = rng.standard_normal((2, 8, 10, 2)).astype(np.float32)
    got = patches(jnp.asarray(images))
    kernel = np.asarray(patches.kernel[...], np.float64)
    want = np.zeros((2, 2, 3, 5))
    for row, column in np.ndindex(2, 3):
        for i, j in np.ndindex(3, 3):
            pixel = images[:, 3 * row + i, 3 * column + j].astype(np.float64)
            want[:, row, column] += pixel @ kernel[i, j]
    want = want.reshape(2, 6, 5) + np.asarray(patches.bias[...])
    # A float32 sum of 18 terms of order 1.
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_images_take_the_dtype_of_the_kernel():
    patches = Patches(2, 1, 3, std=0.3, rngs=nnx.Rngs(0))
    for param in (patches.kernel, patches.bias):
        param.set_value(param[...].astype(jnp.bfloat16))
    assert patches(jnp.ones((1, 4, 4, 1), jnp.float32)).dtype == jnp.bfloat16
