# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant (Xiao et al., 2211.10438): outliers of activations moved into the weights.

Rounding a row of activations to int8 spends its 255 levels on the largest. If a few inputs are a
hundred times the others, as in trained decoders, the others lose all bits. Weights have no such
inputs. x w = (x / s) (s w) with s between the two (equation 4) gives both ranges that fit eight
bits. This module computes s and rounds s w; the product rounds the activations.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from qwix import QArray

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods.reconstruct import Report, channel_errors, check_operands, report
from dovetail_quant.methods.record import Statistics

# Inputs (or rows of the weight) below this part of the largest are not smoothed: they hold next to
# nothing, and their s would be a ratio of roundings.
_LEAST = 1e-5


def smooth(
    w: Float[Array, "K N"], stats: Statistics, spec: Spec, *, alpha: float = 0.5
) -> tuple[Float[Array, "K"], QArray, Report]:
    """Returns s_j = max|x_j|^alpha / max|w_j|^(1 - alpha), the codes of s w, and their error.

    y = (x / s) Q(s w), with x / s rounded by row to int8. s is 1 if an input or its weights are 0,
    or nearly. The report is of the weights' rounding alone; smoothing increases it, and decreases
    the rounding of activations.

    Args:
        w: Weights.
        stats: Statistics of the inputs, from `record`.
        spec: The codes, with act="int8".
        alpha: Share of the difficulty for the weights: 0.5 is even, more if activations are worse.

    Raises:
        ValueError: spec.act is not int8, alpha is outside [0, 1], shapes do not fit, or a group
            does not divide K.

    Example:

        >>> from dovetail_quant import Spec
        >>> from dovetail_quant.methods import record
        >>> x = jax.random.normal(jax.random.key(0), (512, 128))
        >>> w = jax.random.normal(jax.random.key(1), (128, 64))
        >>> stats = record.update(record.empty(128), x)
        >>> s, q, report = smooth(w, stats, Spec(weight="int8", act="int8", method="smooth"))
        >>> s.shape
        (128,)
    """
    check_operands(w, stats.gram)
    if spec.act != "int8":
        raise ValueError(
            "smoothing is for activations that are rounded, too, got act=None; write act='int8', "
            "or method='awq' for weights alone"
        )
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], got alpha={alpha}; write alpha=0.5")
    return _smooth(w, stats, spec, alpha=jnp.float32(alpha))


@jax.jit(static_argnames=("spec",))
def _smooth(
    w: Array, stats: Statistics, spec: Spec, *, alpha: Array
) -> tuple[Array, QArray, Report]:
    w = w.astype(jnp.float32)
    inputs, weights = stats.absmax, jnp.max(jnp.abs(w), axis=1)
    # Strictly: of a site without rows, or of weights 0, no input is smoothed.
    holds = (inputs > _LEAST * inputs.max()) & (weights > _LEAST * weights.max())
    ratio = jnp.where(holds, inputs, 1) ** alpha / jnp.where(holds, weights, 1) ** (1 - alpha)
    s = jnp.where(holds, ratio, 1)
    q = codes.quantize(w * s[:, None], spec)
    errors = channel_errors(codes.dequantize(q) / s[:, None] - w, stats.gram)
    nearest = channel_errors(codes.dequantize(codes.quantize(w, spec)) - w, stats.gram)
    return s, q, report(w, stats.gram, errors=errors, nearest=nearest, alpha=alpha)
