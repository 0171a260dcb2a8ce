# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Cutting the queries of a mixed batch into tiles of few sizes, each tile of one request.

A batch mixes requests that prefill hundreds of rows with requests that decode one. A single tile
size would make each decoding row cost a whole tile, or a prefill read its keys once per row. So a
request's rows fill as many of the longest tiles as they can, and what remains is one tile of the
shortest size that holds it. Sizes follow from the request alone, never from its neighbours.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

# Rows of q per tile. 1 is for decoding, 8 for drafts that are verified together; at 64 rows and
# four or more heads per key head the products are large enough to be bound by arithmetic.
SIZES = (1, 8, 64)


class Tiles(NamedTuple):
    """The tiles of one size; arrays are [most], and the first `real` are tiles.

    request: whose tile it is. offset: its first row, from the first row of the request.
    rows: how many of its rows are queries, 0 for what is no tile.
    """

    size: int
    real: Int[Array, ""]
    request: Int[Array, " T"]
    offset: Int[Array, " T"]
    rows: Int[Array, " T"]


def tiles(counts: Any, *, rows: int, sizes: tuple[int, ...] = SIZES) -> list[Tiles]:
    """The tiles of requests with `counts` i32[R] queries each, of `rows` in all; R >= 1.

    Together they hold every query once. There are at most rows // longest + R, and at most R of
    each other size. Sizes that `rows` cannot need are left out.
    """
    sizes = tuple(size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < rows)
    longest, requests = sizes[-1], counts.shape[0]
    full, rest = counts // longest, counts % longest
    found = []
    for i, size in enumerate(sizes):
        above = sizes[i - 1] if i else 0
        has_rest = (rest > above) & (rest <= size)
        per_request = has_rest.astype(jnp.int32)
        most = requests
        if size == longest:
            per_request, most = per_request + full, rows // size + requests
        found.append(_tiles(counts, per_request, size=size, longest=longest, most=most))
    return found


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
