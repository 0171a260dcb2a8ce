# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The effect of quantizing a weight on the outputs of its site: the measure of all methods.

sum over rows x of |x dW|^2 = tr(dW^T H dW), H = sum of x x^T. It is a sum over output channels, so
two quantizations may be mixed channel by channel, taking the better of each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Report(NamedTuple):
    """The result of a method at a site. Leaves are arrays, so it passes through jit and vmap.

    Attributes:
        error: tr(dW^T H dW) of the returned codes. All errors are in the units of the gram.
        nearest: The same for round to nearest.
        signal: The same for the weight itself, tr(W^T H W).
        kept: Output channels left as round to nearest, which was no worse there.
        damp: GPTQ's addition to the diagonal of H, in units of its mean; 0 with other methods.
        alpha: The exponent of AWQ and SmoothQuant; 0 with other methods.
    """

    error: Float[Array, ""]
    nearest: Float[Array, ""]
    signal: Float[Array, ""]
    kept: Int[Array, ""]
    damp: Float[Array, ""]
    alpha: Float[Array, ""]

    @property
    def relative(self) -> Float[Array, "*sites"]:
        """sqrt(error / signal), 0 for a site without signal."""
        signal = jnp.where(self.signal > 0, self.signal, 1)
        return jnp.sqrt(jnp.maximum(self.error, 0) / signal)


def channel_errors(dw: Float[Array, "K N"], gram: Float[Array, "K K"]) -> Float[Array, "N"]:
    """Returns diag(dW^T H dW): squared output error per channel, summed over the rows of H."""
    dw = dw.astype(jnp.float32)
    products = jnp.matmul(gram.astype(jnp.float32), dw, precision=jax.lax.Precision.HIGHEST)
    # Never negative but for rounding.
    return jnp.maximum((dw * products).sum(0), 0)


def check_operands(w: Array, gram: Array) -> None:
    """Raises ValueError unless w is a matrix and gram the square of its inputs."""
    if w.ndim != 2:
        raise ValueError(
            f"w must be a matrix [K, N], got w of shape={w.shape}; map over the leading axes with "
            "jax.lax.map or jax.vmap"
        )
    if gram.shape != (w.shape[0], w.shape[0]):
        raise ValueError(
            f"the statistics must be of the inputs of w, got w of shape={w.shape} and gram of "
            f"shape={gram.shape}; record inputs of width {w.shape[0]}"
        )


def report(
    w: Float[Array, "K N"],
    gram: Float[Array, "K K"],
    *,
    errors: Float[Array, "N"],
    nearest: Float[Array, "N"],
    kept: Int[Array, ""] | int = 0,
    damp: Float[Array, ""] | float = 0.0,
    alpha: Float[Array, ""] | float = 0.0,
) -> Report:
    """Sums over output channels, and computes the signal.

    Args:
        w: Weights.
        gram: Sum of x x^T.
        errors: Error of each channel.
        nearest: Error of each channel, rounded to nearest.
        kept: See `Report`.
        damp: See `Report`.
        alpha: See `Report`.
    """
    return Report(
        error=errors.sum(),
        nearest=nearest.sum(),
        signal=channel_errors(w, gram).sum(),
        kept=jnp.asarray(kept, jnp.int32),
        damp=jnp.asarray(damp, jnp.float32),
        alpha=jnp.asarray(alpha, jnp.float32),
    )
