# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The static description of a call of `paged_attention`."""

import dataclasses

from dovetail_kernels.dispatch import Device


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagedCall:
    """Sizes, dtype and options of one call.

    Attributes:
        queries: M, rows of q.
        heads: N, query heads.
        kv_heads: K, key heads.
        width: H, elements of a head.
        pages: P, pages in the cache.
        page_size: Keys per page.
        requests: R, rows of the page table.
        columns: C, columns of the page table.
        dtype: Dtype of q and pages.
        window: Number of visible keys, or None.
        soft_cap: Cap of the logits, or None.
        sinks: Whether the call has sinks.
        scale: Factor of the logits.
        device: Device of the call.
    """

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
        """Number of keys of the longest request that fits the page table."""
        return self.columns * self.page_size

    @property
    def inner(self) -> str:
        """Compute dtype between arguments and result."""
        return "float64" if self.dtype == "float64" else "float32"
