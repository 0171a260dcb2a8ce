# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The cost of one run of an instruction."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one run. None is unknown.

    Attributes:
        flops: Additions, multiplications, comparisons and the like, on integers too.
        bytes: Bytes read and written.
        transcendentals: Exponentials, logarithms, powers, roots, trigonometric functions.
    """

    flops: float | None
    bytes: float | None
    transcendentals: float | None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None if either is unknown, or no bytes move."""
        return self.flops / self.bytes if self.bytes and self.flops is not None else None
