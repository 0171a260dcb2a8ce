# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rounding to nearest: needs no calibration, and is the baseline of the other methods."""

from jaxtyping import Array, Float
from qwix import QArray

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods.reconstruct import Report, channel_errors, check_operands, report


def absmax(w: Float[Array, "*b K N"], spec: Spec) -> QArray:
    """Rounds each weight to its nearest code, with scales from the extremes of each group."""
    return codes.quantize(w, spec)


def measured(
    w: Float[Array, "K N"], gram: Float[Array, "K K"], spec: Spec
) -> tuple[QArray, Report]:
    """Returns `absmax` and its effect on outputs.

    Args:
        w: Weights.
        gram: Sum of x x^T over the inputs.
        spec: The codes.
    """
    check_operands(w, gram)
    q = absmax(w, spec)
    errors = channel_errors(codes.dequantize(q) - w.astype("float32"), gram)
    return q, report(w, gram, errors=errors, nearest=errors, kept=w.shape[1])
