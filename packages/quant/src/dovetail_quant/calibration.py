# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What calibration found, before it is put in place."""

import dataclasses
from collections.abc import Mapping

from jaxtyping import Array
from qwix import QArray

from dovetail_quant.plan import Plan
from dovetail_quant.reconstruct import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The codes of one site, what x is divided by, and what that does to the outputs.

    report: None for a site without inputs in the batches, which was rounded to nearest.
    """

    codes: QArray
    scale: Array | None
    report: Report | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """What `apply` needs: the plan, and a result for each of its sites.

    starved: sites, and experts of them, that saw fewer rows than they have inputs and were rounded
    to nearest, with the rows that they saw.
    """

    plan: Plan
    found: Mapping[str, Calibrated]
    starved: Mapping[str, int]
