# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Patch embedding: an image as a sequence of square patches, each projected to one vector."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.placing.shard import named


class Patches(nnx.Module):
    """The product of each patch with `kernel` [patch, patch, channels, embed], plus `bias`.

    This equals a convolution with windows that do not overlap. As one matrix product it runs on the
    same units as the other projections (2010.11929, eq. 1).

    Args:
        patch: Side of a patch in pixels.
        channels: Channels of an image.
        embed: Width of a patch's vector.
        std: Standard deviation of the fresh kernel.
        rngs: Random streams; the kernel is drawn from `params`.
    """

    def __init__(self, patch: int, channels: int, embed: int, *, std: float, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(std)
        kernel = normal(rngs.params(), (patch, patch, channels, embed), jnp.float32)
        self.kernel = nnx.Param(kernel, **named("patch", "patch", "patch", "embed"))
        self.bias = nnx.Param(jnp.zeros(embed), **named("embed"))

    def __call__(self, images: Float[Array, "b h w c"]) -> Float[Array, "b t embed"]:
        """Returns the patches row by row. Pixels beyond the last whole patch are left out."""
        kernel = self.kernel[...]
        p, _, c, embed = kernel.shape
        rows, columns = images.shape[1] // p, images.shape[2] // p
        whole = images[:, : rows * p, : columns * p].astype(kernel.dtype)
        cut = whole.reshape(-1, rows, p, columns, p, c).swapaxes(2, 3)
        patches = cut.reshape(-1, rows * columns, p * p * c)
        product = jax.lax.dot_general(
            patches, kernel.reshape(p * p * c, embed), (((2,), (0,)), ((), ()))
        )
        return product + self.bias[...]
