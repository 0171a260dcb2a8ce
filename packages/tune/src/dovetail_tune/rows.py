# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that belong together: sums over a row, and the chosen and rejected rows of a pair."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from dovetail_tune.types import Batch

#: Last ids of a prompt that may differ between both rows of a pair. An id with characters of the
#: prompt and of the answer belongs to neither, and it differs between two answers. A character may
#: be as many ids as it has bytes of UTF-8, at most 4.
BOUNDARY_IDS = 4


class Pair(NamedTuple):
    """Values of chosen and rejected rows.

    Attributes:
        chosen: Rows 2i of a batch.
        rejected: Rows 2i + 1.
    """

    chosen: Any
    rejected: Any


def split_pairs(x: Array | np.ndarray) -> Pair:
    """Returns rows 2i and 2i + 1 of [2N, ...], each [N, ...]."""
    x = jnp.asarray(x)
    both = x.reshape(x.shape[0] // 2, 2, *x.shape[1:])
    return Pair(both[:, 0], both[:, 1])


def intact_pairs(batch: Batch) -> Bool[Array, " N"]:
    """Returns True for each pair of rows with one `pair_ids`. Without the field all are intact.

    A loss over pairs is NaN where this is False, and `Trainer.fit` refuses the step.

    Raises:
        ValueError: The number of rows is odd, or concrete `pair_ids` differ: names the rows.
    """
    rows = batch["tokens"].shape[0]
    if rows % 2:
        raise ValueError(
            f"rows 2i and 2i + 1 must be the chosen and the rejected answer, got {rows} rows; "
            "batch with dovetail_data.pairs, and give the trainer a loss with rows=2"
        )
    if "pair_ids" not in batch:
        return jnp.ones(rows // 2, bool)
    ids = split_pairs(batch["pair_ids"])
    equal = ids.chosen == ids.rejected
    if not isinstance(equal, Tracer) and not np.asarray(equal).all():
        i = int(np.flatnonzero(~np.asarray(equal))[0])
        raise ValueError(
            f"rows 2i and 2i + 1 must have one pair_ids, got {int(ids.chosen[i])} in row {2 * i} "
            f"and {int(ids.rejected[i])} in row {2 * i + 1}; do not shuffle or split the rows of "
            "dovetail_data.pairs"
        )
    return equal


def poisoned(x: Float[Array, " N"], intact: Bool[Array, " N"]) -> Float[Array, " N"]:
    """Returns x, with NaN where `intact` is False."""
    return jnp.where(intact, x, jnp.nan)


def row_sums(x: Float[Array, "B S"]) -> Float[Array, " B"]:
    """Returns the sums over the tokens of each row."""
    return x.sum(axis=1)


def row_tokens(batch: Batch) -> Float[Array, " B"]:
    """Returns the number of tokens of each row that count, at least 1 for use as a divisor."""
    counts = (jnp.asarray(batch["mask"]) > 0).sum(axis=1)
    return jnp.maximum(counts, 1).astype(jnp.float32)


def counted(batch: Batch) -> Bool[Array, " N"]:
    """Returns True for each pair whose rows both have a token that counts.

    The others, such as the filler of a last batch, add neither to sums nor to counts.
    """
    tokens = split_pairs((jnp.asarray(batch["mask"]) > 0).any(axis=1))
    return tokens.chosen & tokens.rejected


def mean_over(x: Float[Array, " N"], where: Bool[Array, " N"]) -> tuple[Array, Array]:
    """Returns the term (sum of x where it counts, number of those). NaN elsewhere is not read."""
    return jnp.where(where, x, 0.0).sum(), where.sum().astype(jnp.float32)


def no_gradient(x: Any) -> Any:
    """Returns x as a constant."""
    return jax.tree.map(jax.lax.stop_gradient, x)
