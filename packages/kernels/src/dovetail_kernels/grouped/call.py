# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What grouped_matmul is asked, for its implementations."""

import dataclasses

from dovetail_kernels.dispatch import Device


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedMatmulCall:
    """`rows` [rows, inner] by the matrices [count, inner, outer], all of `dtype`."""

    rows: int
    inner: int
    outer: int
    count: int
    dtype: str
    device: Device

    @property
    def elements(self) -> int:
        """Numbers in the arguments and the result together."""
        return (
            self.rows * self.inner + self.count * self.inner * self.outer + self.rows * self.outer
        )
