# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The softmax statistics that attention returns on request."""

from typing import NamedTuple

from jaxtyping import Array, Float


class SoftmaxStats(NamedTuple):
    """Statistics of attention's softmax, in float32 (float64 for float64).

    Attributes:
        lse: Log of the denominator of each query, sinks included. -inf for an empty denominator.
        max: Largest visible logit of each head (scaled, with bias, capped), without sinks. -inf if
            none is visible.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import attention
        >>> q = k = v = jnp.zeros((1, 2, 1, 8))
        >>> stats = attention(q, k, v, causal=True, stats=True)[1]
        >>> jnp.round(stats.lse[0, :, 0], 4)  # log 1, log 2
        Array([0.    , 0.6931], dtype=float32)
    """

    lse: Float[Array, "b t n"]
    max: Float[Array, "b n"]
