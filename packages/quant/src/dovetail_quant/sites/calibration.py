# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a calibration, before `apply`."""

import dataclasses
from collections.abc import Mapping

from jaxtyping import Array
from qwix import QArray

from dovetail_quant.methods.reconstruct import Report
from dovetail_quant.sites.plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The codes of one site.

    Attributes:
        codes: Codes and scales.
        scale: Divisor of x, f32[K] or f32[E, K]; None for none.
        report: Effect on the site's outputs. None for a site without inputs in the batches; it is
            rounded to nearest.
    """

    codes: QArray
    scale: Array | None
    report: Report | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """The result of `calibrate`, for `apply`.

    Attributes:
        plan: The plan.
        sites: The codes of each site, by path.
        starved: Sites, and single experts of them, with fewer rows than inputs, and their rows.
            They are rounded to nearest.
    """

    plan: Plan
    sites: Mapping[str, Calibrated]
    starved: Mapping[str, int]

    def __repr__(self) -> str:
        return f"Calibration({len(self.sites)} sites, {len(self.starved)} starved)"
