# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The quantization of a site's weights, and of its activations."""

import dataclasses
import math
from typing import Literal

from dovetail_quant import _elsewhere

Weight = Literal["int8", "int4", "nf4", "fp8"]
Method = Literal["absmax", "gptq", "awq", "smooth"]
Act = Literal["int8", "int4", "fp8"]


@_elsewhere.spec
@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """The quantization of a site.

    Args:
        weight: "int8" and "int4" are integers, "nf4" the 16 quantiles of a normal distribution
            (2305.14314), "fp8" float8_e4m3fn.
        group: Inputs per scale; None: all inputs of an output channel.
        act: "int8" rounds each row of activations by its largest number and multiplies integers.
            "int4" and "fp8" (float8_e4m3fn) round each group of each row, as Qwix's tiles. None:
            float.
        method: "absmax" rounds to nearest; "gptq" (2210.17323), "awq" (2306.00978) and "smooth"
            (2211.10438) need calibration.
        symmetric: Code 0 means 0. Otherwise codes span the least to the largest weight of a group,
            and each scale has an integer zero point. The range need not contain 0.
        clip: The range of a group is clip times its largest weight; weights beyond it get the last
            code. In (0, 1].
        rms: The range of a group is rms times the root mean square of its weights. None: absmax.

    Raises:
        ValueError: An option is unknown, or options exclude each other.

    Example:

        >>> Spec(weight="int4", group=32).symmetric
        True
    """

    weight: Weight = "int8"
    group: int | None = None
    act: Act | None = None
    method: Method = "absmax"
    symmetric: bool = True
    clip: float = 1.0
    rms: float | None = None

    def __post_init__(self) -> None:
        if self.weight not in ("int8", "int4", "nf4", "fp8"):
            raise ValueError(
                f"weight must be int8, int4, nf4 or fp8, got weight={self.weight!r}; "
                "write weight='int8'"
            )
        if self.method not in ("absmax", "gptq", "awq", "smooth"):
            raise ValueError(
                f"method must be absmax, gptq, awq or smooth, got method={self.method!r}; "
                "write method='absmax'"
            )
        if self.group is not None and self.group < 2:
            raise ValueError(
                f"group must be at least 2 inputs, got group={self.group}; write group=128, or "
                "leave it out for one scale for each output channel"
            )
        if self.act not in (None, "int8", "int4", "fp8"):
            raise ValueError(
                f"act must be None, 'int8', 'int4' or 'fp8', got act={self.act!r}; leave it out"
            )
        if self.act and (self.weight == "nf4" or (self.act == "fp8") != (self.weight == "fp8")):
            raise ValueError(
                f"activations and weights must both be integers or both fp8, got act={self.act!r} "
                f"with weight={self.weight!r}; write weight={self.act!r}"
            )
        if not self.symmetric and self.weight not in ("int8", "int4"):
            raise ValueError(
                f"only integers have a zero point, got weight={self.weight!r} with "
                "symmetric=False; leave symmetric out"
            )
        if not 0 < self.clip <= 1:
            raise ValueError(f"clip must lie in (0, 1], got clip={self.clip}; leave it out")
        if self.rms is not None and not 0 < self.rms < math.inf:
            raise ValueError(f"rms must be above 0, got rms={self.rms}; write rms=7.0")
        if (self.clip, self.rms) != (1.0, None) and not self.symmetric:
            raise ValueError(
                f"clip and rms are of symmetric ranges, got clip={self.clip}, rms={self.rms} with "
                "symmetric=False; leave symmetric out"
            )
        if self.clip != 1 and self.rms is not None:
            raise ValueError(
                f"a range is clip times the largest weight or rms times their root mean square, "
                f"got clip={self.clip}, rms={self.rms}; leave one out"
            )
