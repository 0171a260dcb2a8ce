# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Round to nearest: the method that needs no calibration, and the one that the others must beat."""

from jaxtyping import Array, Float
from qwix import QArray

from dovetail_quant import codes
from dovetail_quant.reconstruct import Report, channel_errors, check_operands, report
from dovetail_quant.spec import Spec


def absmax(w: Float[Array, "*b K N"], spec: Spec) -> QArray:
    """Each weight as its nearest code, with scales from the extremes of each group."""
    return codes.quantize(w, spec)


def measured(
    w: Float[Array, "K N"], gram: Float[Array, "K K"], spec: Spec
) -> tuple[QArray, Report]:
    """`absmax`, and what it does to the outputs of inputs whose sum of x x^T is `gram`."""
    check_operands(w, gram)
    q = absmax(w, spec)
    errors = channel_errors(codes.dequantize(q) - w.astype("float32"), gram)
    return q, report(w, gram, errors=errors, nearest=errors, kept=w.shape[1])
