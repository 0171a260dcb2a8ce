# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Division of a mixed batch's queries into tiles of a few sizes, each tile of one request.

A batch mixes requests that prefill hundreds of rows with requests that decode one. With a single
tile size each decoding row would cost a whole tile, or a prefill would read its keys once per row.
A request's rows therefore fill as many of the longest tiles as they can, and the rest is one tile
of the shortest sufficient size. Sizes depend only on the request, never on its neighbours.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

# Rows of q per tile. 1 is for decoding, 8 for drafts that are verified together; at 64 rows and
# four or more heads per key head the products are large enough to be bound by arithmetic.
SIZES = (1, 8, 64)
# One size for all rows, between the costs of decoding and of prefill.
INVARIANT = (8,)


class Tiles(NamedTuple):
    """The tiles of one size. Arrays are [T], T the most tiles possible.

    Attributes:
        size: Rows of a tile.
        real: Number of tiles in use, i32[]. They come first.
        request: Request of the tile, i32[T].
        offset: First row of the tile, counted from the first row of the request, i32[T].
        rows: Number of queries in the tile, i32[T]; 0 beyond `real`.
    """

    size: int
    real: Int[Array, ""]
    request: Int[Array, " T"]
    offset: Int[Array, " T"]
    rows: Int[Array, " T"]


def tiles(counts: Any, *, rows: int, sizes: tuple[int, ...] = SIZES) -> list[Tiles]:
    """Divides the rows of requests into tiles, one `Tiles` per size.

    Together the tiles hold every query once. There are at most rows // longest + R tiles of the
    longest size, at most R of each other size, and never more than rows. Sizes too large for `rows`
    are left out.

    Args:
        counts: Queries of each request, i32[R], R at least 1.
        rows: Number of rows in the batch.
        sizes: Rows per tile, ascending.
    """
    sizes = tuple(size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < rows)
    longest, requests = sizes[-1], counts.shape[0]
    full, rest = counts // longest, counts % longest
    by_size = []
    for i, size in enumerate(sizes):
        above = sizes[i - 1] if i else 0
        has_rest = (rest > above) & (rest <= size)
        per_request = has_rest.astype(jnp.int32)
        most = requests
        if size == longest:
            per_request, most = per_request + full, rows // size + requests
        most = min(most, rows)  # each has a row
        by_size.append(_tiles(counts, per_request, size=size, longest=longest, most=most))
    return by_size


def _tiles(counts: Any, per_request: Any, *, size: int, longest: int, most: int) -> Tiles:
    ends = jnp.cumsum(per_request, dtype=jnp.int32)
    ids = jnp.arange(most, dtype=jnp.int32)
    is_real = ids < ends[-1]
    request = jnp.searchsorted(ends, ids, side="right", method="compare_all").astype(jnp.int32)
    request = jnp.minimum(request, counts.shape[0] - 1)
    nth = ids - (ends - per_request)[request]
    before = nth * size if size == longest else (counts // longest * longest)[request]
    offset = jnp.where(is_real, before, 0)
    rows = jnp.where(is_real, jnp.minimum(counts[request] - offset, size), 0)
    return Tiles(size=size, real=ends[-1], request=request, offset=offset, rows=rows)
