# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention of a decoder over pages: the adapter between `features` and the paged operations.

Shape letters: N token rows, R requests, G page groups, C columns of a page table, n query heads, k
key heads, h width of a key, g width of a value.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from dovetail_infer.types import Operations


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pages:
    """Cache entry of a layer.

    Attributes:
        array: Pages [P, 2, page, k, h], or [P, 1, page, k, h] with `value_width`.
        group: Page group, which has the page tables.
        value_width: Width of a value that is the head of the key, or None.
    """

    array: Any
    group: int = dataclasses.field(metadata={"static": True})
    value_width: int | None = dataclasses.field(metadata={"static": True})


class Requests(NamedTuple):
    """Token rows of the requests of a step.

    Attributes:
        tables: Page ids of each group and request.
        lengths: Number of cached tokens after the step.
        starts: First row of each request, then the end of the last; of NumPy if known.
        positions: Position of each row in its request. 0 in padding.
        row_request: Request of each row. R in padding.
    """

    tables: Int[Array, "G R C"]
    lengths: Int[Array, " R"]
    starts: Int[Array | np.ndarray, " R1"]
    positions: Int[Array, " N"]
    row_request: Int[Array, " N"]


def requests(
    tables: Int[Array, "G R C"],
    counts: Int[Array, " R"],
    lengths: Int[Array, " R"],
    tokens: int,
    *,
    single: bool = False,
) -> Requests:
    """Returns the rows of a step of `tokens` rows, padding included.

    Args:
        tables: Page ids of each group and request.
        counts: Number of rows of each request.
        lengths: Number of cached tokens of each request after the step.
        tokens: N.
        single: Whether N = R and no count is above 1. A row of padding is then a request that reads
            the first key of the first request, so that attention needs no pass for padding.
    """
    if single:
        used = counts > 0
        return Requests(
            tables=jnp.where(used[:, None], tables, jnp.maximum(tables[:, :1], 0)),
            lengths=jnp.maximum(lengths, 1),
            starts=np.arange(tokens + 1, dtype=np.int32),
            positions=jnp.maximum(lengths - 1, 0),
            row_request=jnp.where(used, jnp.arange(tokens, dtype=jnp.int32), tokens),
        )
    ends = jnp.cumsum(counts)
    row = jnp.arange(tokens, dtype=jnp.int32)
    row_request = jnp.searchsorted(ends, row, side="right", method="compare_all").astype(jnp.int32)
    position = (lengths - ends).at[row_request].get(mode="fill", fill_value=0) + row
    return Requests(
        tables=tables,
        lengths=lengths,
        starts=jnp.pad(ends, (1, 0)).astype(jnp.int32),
        positions=jnp.where(row < ends[-1], position, 0),
        row_request=row_request,
    )


@dataclasses.dataclass(frozen=True)
class PagedAttention:
    """The attention operation for `features`: writes keys and values, then reads all of a request.

    Args:
        operations: paged_write and paged_attention.
        requests: The rows of the step.
        invariant: Whether the bits of a row may not depend on the other rows of its request.
    """

    operations: Operations
    requests: Requests
    invariant: bool = False

    def __call__(
        self,
        q: Float[Array, "1 N n h"],
        k: Float[Array, "1 N k h"],
        v: Float[Array, "1 N k g"],
        *,
        causal: bool,
        positions: Any,
        segment_ids: Any,
        window: int | None,
        soft_cap: float | None,
        scale: float | None,
        sinks: Float[Array, " n"] | None,
        kv: Pages,
    ) -> tuple[Float[Array, "1 N n g"], Pages]:
        """Returns the output and the layer's pages after the step.

        Args:
            q: Queries.
            k: Keys.
            v: Values; the head of k if the pages hold keys alone.
            causal: True.
            positions: Not read: the step has them.
            segment_ids: Not read.
            window: Number of visible keys. None: all.
            soft_cap: Cap of the logits.
            scale: Factor of the logits.
            sinks: One logit per head.
            kv: The layer's pages.
        """
        rows, pages = self.requests, kv.array
        k = k[0].astype(pages.dtype)
        values = None if kv.value_width is not None else v[0].astype(pages.dtype)
        slots = self._slots(rows.tables[kv.group], pages.shape[2])
        pages = self._write(pages, k, values, slots)
        out = self.operations.paged_attention(
            q[0],
            pages,
            page_table=rows.tables[kv.group],
            kv_lengths=rows.lengths,
            q_starts=rows.starts,
            window=window,
            soft_cap=soft_cap,
            scale=scale,
            sinks=sinks,
            value_width=kv.value_width,
            invariant=self.invariant,
        )
        return out[None], dataclasses.replace(kv, array=pages)

    def _write(self, pages: Any, k: Array, v: Array | None, slots: Array) -> Any:
        if len(slots) == 1:
            # XLA:CPU makes a scatter of one row a dynamic-update-slice, on a copy of the pages.
            slots = jnp.pad(slots, (0, 1), constant_values=-1)
            row = (0, 1), (0, 0), (0, 0)
            k, v = jnp.pad(k, row), None if v is None else jnp.pad(v, row)
        return self.operations.paged_write(pages, k, v, slots=slots)

    def _slots(self, table: Int[Array, "R C"], page_size: int) -> Int[Array, " N"]:
        """Returns the place of each row's token in the pages; -1 for padding."""
        rows = self.requests
        column = rows.positions // page_size
        page = table.at[rows.row_request, column].get(mode="fill", fill_value=-1)
        return jnp.where(page < 0, -1, page * page_size + rows.positions % page_size)
