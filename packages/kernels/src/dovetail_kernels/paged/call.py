# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One call of `paged_attention`, in the form given to every implementation."""

import dataclasses
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int

from dovetail_kernels.dispatch import Call, Device
from dovetail_kernels.paged.pages import LARGEST, QuantizedPages
from dovetail_kernels.precision import describe_precision


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagedCall(Call):
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
        dtype: Dtype of q.
        pages_dtype: Dtype of pages, or of their codes.
        window: Number of visible keys, or None.
        soft_cap: Cap of the logits, or None.
        sinks: Whether the call has sinks.
        scale: Factor of the logits.
        value_width: Elements of a key that are its value. None for pages of keys and values.
        lse: Whether the log-sum-exp is returned.
        invariant: Whether a row's bits must not depend on the number of rows of its request.
        single: Whether each request is known to have one row, so that no row is padding.
        device: Device of the call.
    """

    _FACTS = frozenset(
        {
            *("queries", "heads", "kv_heads", "width"),
            *("pages", "page_size", "requests", "columns"),
            *("dtype", "pages_dtype", "scale", "single", "device"),
        }
    )

    queries: Any
    heads: int
    kv_heads: int
    width: int
    pages: Any
    page_size: Any
    requests: Any
    columns: Any
    dtype: str
    pages_dtype: str
    window: int | None
    soft_cap: float | None
    sinks: bool
    scale: float
    value_width: int | None
    lse: bool
    invariant: bool
    single: bool
    device: Device

    @property
    def keys(self) -> Any:
        """Number of keys of the longest request that fits the page table."""
        return self.columns * self.page_size

    @property
    def inner(self) -> str:
        """Compute dtype between arguments and result."""
        return "float64" if "float64" in (self.dtype, self.pages_dtype) else "float32"

    @property
    def operands(self) -> str:
        """Dtype of the products' operands, which decides their precision."""
        if self.quantized or self.dtype == self.pages_dtype:
            return self.dtype
        return self.inner  # of bfloat16 and float16 too

    @property
    def pinned(self) -> str | None:
        """Bits that do not depend on the other rows need one implementation for all batches."""
        if self.invariant or self.device.platform == "cpu":
            return "its bits must not depend on the sizes of a batch"
        return None

    @property
    def precision(self) -> str:
        """Precision of the products in words."""
        return describe_precision(self.operands)

    @property
    def quantized(self) -> bool:
        """Whether pages are codes with scales."""
        return self.pages_dtype in LARGEST

    @property
    def out_width(self) -> int:
        """Elements of an output head."""
        return self.width if self.value_width is None else self.value_width


class PagedInputs(NamedTuple):
    """The arrays of a call, as in `paged_attention`.

    `run(call, inputs)` returns out [M, N, G], or (out, lse [M, N]) if `call.lse`.

    Attributes:
        q: Queries.
        pages: Cache.
        page_table: Page ids.
        kv_lengths: Number of keys of each request.
        q_starts: First row of each request, then the end of the last.
        sinks: One logit per head, or None.
    """

    q: Float[Array, "M N H"]
    pages: Float[Array, "P kv page K H"] | QuantizedPages
    page_table: Int[Array, "R C"]
    kv_lengths: Int[Array, " R"]
    q_starts: Int[Array, " R1"]
    sinks: Float[Array, " N"] | None
