# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The call of `grouped_matmul` as its implementations see it."""

import dataclasses
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int

from dovetail_kernels.dispatch import Call, Device


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedMatmulCall(Call):
    """Sizes, dtype and device of one call.

    Attributes:
        rows: M, rows of x. An int, or a symbolic dimension of `jax.export`.
        inner: D, columns of x and rows of each matrix.
        outer: F, columns of each matrix.
        count: E, number of matrices.
        dtype: Dtype of x and w.
        device: Device of the call.
    """

    _FACTS = frozenset(("rows", "inner", "outer", "count", "dtype", "device"))

    rows: Any
    inner: Any
    outer: Any
    count: Any
    dtype: str
    device: Device

    @property
    def matrices(self) -> int:
        """Number of elements of the matrices."""
        return self.count * self.inner * self.outer

    @property
    def elements(self) -> int:
        """Number of elements of the arguments and the result together."""
        return self.rows * self.inner + self.matrices + self.rows * self.outer


class GroupedMatmulInputs(NamedTuple):
    """The arrays of a call. `run(call, inputs)` returns [M, F], differentiable in x and w.

    Attributes:
        x: Rows, group by group. Rows beyond the sum of sizes may hold anything, and give 0.
        w: One matrix per group.
        sizes: Rows per group.
    """

    x: Float[Array, "M D"]
    w: Float[Array, "E D F"]
    sizes: Int[Array, " E"]
