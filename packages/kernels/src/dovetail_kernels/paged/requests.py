# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows and pages of each request, and the validity of requests.

Contradictory values raise an error if they are known (`check`). Under a trace they are unknown, and
a result from clamped indices would look like any other. There the rows of the invalid request
become NaN, or all rows if `q_starts` itself is wrong.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from dovetail_kernels.arrays import known
from dovetail_kernels.paged.call import PagedCall


class Requests(NamedTuple):
    """The parsed requests of a batch, for every implementation.

    Attributes:
        starts: First row of each request, i32[R].
        counts: Rows of each request, i32[R]. 0 for an invalid request: its length may be anything
            and would be a loop bound.
        first: Position of each request's first query, i32[R].
        page_ids: Page ids i32[R, C]; 0 for a page without a visible key.
        row_request: Request of each row, i32[M]; any for a row without one.
        row_owned: Whether the row belongs to a valid request, bool[M].
        row_bad: Whether the row belongs to an invalid request, bool[M]. All rows if q_starts is
            wrong.
    """

    starts: Int[Array, " R"]
    counts: Int[Array, " R"]
    first: Int[Array, " R"]
    page_ids: Int[Array, "R C"]
    row_request: Int[Array, " M"]
    row_owned: Bool[Array, " M"]
    row_bad: Bool[Array, " M"]


def requests(call: PagedCall, page_table: Any, kv_lengths: Any, q_starts: Any) -> Requests:
    """Parses the requests of a batch. Traceable; works for R = 0 and M = 0 too.

    Args:
        call: Sizes and options.
        page_table: Page ids i32[R, C].
        kv_lengths: Number of keys of each request, i32[R].
        q_starts: First row of each request, then the end of the last, i32[R + 1].
    """
    starts, ends = q_starts[:-1], q_starts[1:]
    counts = ends - starts
    if call.single:
        ordered = jnp.ones((), bool)
    else:
        ordered = jnp.all(counts >= 0) & (q_starts[0] == 0) & (q_starts[-1] <= call.queries)
    columns = jnp.arange(call.columns, dtype=jnp.int32)[None]
    needed = _needed(call, counts, kv_lengths, columns)
    outside = (page_table < 0) | (page_table >= call.pages)
    good = (kv_lengths >= counts) & (kv_lengths <= call.keys) & ~jnp.any(needed & outside, axis=1)
    good &= ordered
    rows = jnp.arange(call.queries, dtype=jnp.int32)
    request = jnp.searchsorted(ends, rows, side="right", method="compare_all").astype(jnp.int32)
    owned = (request < call.requests) & ordered
    request = jnp.minimum(request, max(call.requests - 1, 0))
    good_row = good[request] if call.requests else jnp.zeros(rows.shape, bool)
    return Requests(
        starts=starts,
        counts=jnp.where(good, counts, 0),
        first=kv_lengths - counts,
        page_ids=jnp.where(needed & good[:, None], page_table, 0),
        row_request=request,
        row_owned=owned & good_row,
        row_bad=(owned & ~good_row) | ~ordered,
    )


def _needed(call: PagedCall, counts: Any, kv_lengths: Any, columns: Any) -> Any:
    """Returns bool[R, C]: the pages with a key visible to a query.

    NumPy or JAX; `columns` is [1, C].
    """
    ends = (kv_lengths + call.page_size - 1) // call.page_size
    needed = (columns < ends[:, None]) & (counts > 0)[:, None]
    if call.window is None:
        return needed
    window = min(call.window, call.keys + 1)  # as good as any larger one, and within int32
    oldest = (kv_lengths - counts - window + 1).clip(min=0)
    return needed & (columns >= (oldest // call.page_size)[:, None])


def check(call: PagedCall, page_table: Any, kv_lengths: Any, q_starts: Any) -> None:
    """Checks known values against each other and the shapes.

    Args:
        call: Sizes and options.
        page_table: Page ids i32[R, C]. Checked if all three arrays are known.
        kv_lengths: Number of keys of each request, i32[R]. Checked if `q_starts` is known.
        q_starts: First row of each request, then the end of the last, i32[R + 1].

    Raises:
        ValueError: q_starts does not begin with 0, falls, or ends beyond q; a length is below the
            number of queries or exceeds its pages; or a visible page id is out of range.
    """
    starts = known_integers(q_starts)
    if starts is None:
        return
    _check_starts(call, starts)
    lengths, counts = known_integers(kv_lengths), np.diff(starts)
    if lengths is None:
        return
    _check_lengths(call, lengths, counts)
    table = known_integers(page_table)
    if table is None:
        return
    needed = _needed(call, counts, lengths, np.arange(call.columns)[None])
    wrong = np.argwhere(needed & ((table < 0) | (table >= call.pages)))
    if len(wrong):
        r, c = wrong[0].tolist()
        raise ValueError(
            f"page_table must name pages 0 to {call.pages - 1} for every key that is seen, got "
            f"page_table[{r}, {c}]={table[r, c]} with kv_lengths[{r}]={lengths[r]}. Give that "
            f"request a page, or shorten kv_lengths."
        )


def _check_starts(call: PagedCall, starts: np.ndarray) -> None:
    falls = np.flatnonzero(np.diff(starts) < 0)
    if starts[0] != 0 or len(falls) or starts[-1] > call.queries:
        where = "0" if starts[0] != 0 else str(falls[0] + 1) if len(falls) else "-1"
        raise ValueError(
            f"q_starts must begin with 0, never fall, and end within the {call.queries} rows of q, "
            f"got q_starts[{where}]={starts[int(where)]} in {starts.tolist()}. Use the cumulative "
            f"sum of each request's number of queries."
        )


def _check_lengths(call: PagedCall, lengths: np.ndarray, counts: np.ndarray) -> None:
    wrong = np.flatnonzero((lengths < counts) | (lengths > call.keys))
    if len(wrong):
        r = int(wrong[0])
        raise ValueError(
            f"kv_lengths must count a request's queries too and fit its pages: from {counts[r]} "
            f"queries to {call.columns} pages of {call.page_size} keys, got "
            f"kv_lengths[{r}]={lengths[r]}. Count the keys after paged_write, or widen page_table."
        )


def int32(array: Any) -> Array:
    """Converts integers to int32. Those outside become the nearest, which names no page or row.

    Pages hold fewer than 2**31 keys, so 2**31 - 1 is beyond the last page, slot, row and length.
    """
    if not isinstance(array, jax.Array):
        array = np.asarray(array)
        return jnp.asarray(np.clip(array, -(2**31), 2**31 - 1).astype(np.int32))
    if np.can_cast(array.dtype, np.int32):
        return array.astype(jnp.int32)
    array = jnp.minimum(array, jnp.asarray(2**31 - 1, array.dtype))
    if jnp.issubdtype(array.dtype, jnp.signedinteger):
        array = jnp.maximum(array, jnp.asarray(-(2**31), array.dtype))
    return array.astype(jnp.int32)


def known_integers(array: Any) -> np.ndarray | None:
    """Returns the values as int64, or None if they are not known."""
    values = known(array)
    return None if values is None else values.astype(np.int64)
