# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of a call of `paged_attention` before it is traced."""

import dataclasses

from dovetail_kernels.dispatch import Device


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagedCall:
    """Sizes, dtype and options of one call. `columns` are those of the page table."""

    queries: int
    heads: int
    kv_heads: int
    width: int
    pages: int
    page_size: int
    requests: int
    columns: int
    dtype: str
    window: int | None
    soft_cap: float | None
    sinks: bool
    scale: float
    device: Device

    @property
    def keys(self) -> int:
        """The longest request that the page table can name."""
        return self.columns * self.page_size

    @property
    def inner(self) -> str:
        """The dtype of what is computed between arguments and result."""
        return "float64" if self.dtype == "float64" else "float32"
