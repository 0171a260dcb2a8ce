# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The call of `grouped_matmul` as its implementations see it."""

import dataclasses

from dovetail_kernels.dispatch import Device


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedMatmulCall:
    """Sizes, dtype and device of one call.

    Attributes:
        rows: M, rows of x.
        inner: D, columns of x and rows of each matrix.
        outer: F, columns of each matrix.
        count: E, number of matrices.
        dtype: Dtype of x and w.
        device: Device of the call.
    """

    rows: int
    inner: int
    outer: int
    count: int
    dtype: str
    device: Device

    @property
    def elements(self) -> int:
        """Number of elements of the arguments and the result together."""
        return (
            self.rows * self.inner + self.count * self.inner * self.outer + self.rows * self.outer
        )
