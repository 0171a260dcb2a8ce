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


def single_texts(
    batch: Batch, *, padded_first: bool = False
) -> tuple[Bool[Array, "B S"], Bool[Array, " B"]]:
    """Returns the slots of texts, and the rows that hold one text from their first slot on.

    Args:
        batch: Arrays by name.
        padded_first: A text may also begin later.

    Raises:
        ValueError: A field is missing, or a row with concrete ids is packed: names the row.
    """
    missing = {"tokens", "targets"} - set(batch)
    if missing:
        raise ValueError(
            f"a batch of texts must have tokens and targets, got {sorted(batch)}; add "
            f"{', '.join(sorted(missing))}"
        )
    if "segment_ids" not in batch:
        shape = batch["tokens"].shape
        return jnp.ones(shape, bool), jnp.ones(shape[:1], bool)
    segments = jnp.asarray(batch["segment_ids"])
    single = (segments.min(axis=1) >= 0) & (segments.max(axis=1) <= 1)
    if not padded_first:
        single &= (segments[:, 1:] <= segments[:, :-1]).all(axis=1)
    if not isinstance(single, Tracer) and not np.asarray(single).all():
        row = int(np.flatnonzero(~np.asarray(single))[0])
        order = "" if padded_first else " from its first slot on"
        raise ValueError(
            f"a row must hold one text{order}, with segment_ids 1, and 0 for padding, got "
            f"segment_ids={np.unique(np.asarray(segments[row])).tolist()} in row {row}; "
            "make rows of one text each, such as those of dovetail_data.pairs, instead of packing"
        )
    return segments > 0, single


def whole_rows(batch: Batch) -> Bool[Array, " B"]:
    """Returns True for each row that holds one text, with a mask of 0 and 1 alone.

    Only then is the sum over a row that of one answer. A loss that sums rows is NaN where this is
    False, and `Trainer.fit` refuses the step.

    Raises:
        ValueError: A field is missing, or a row with concrete values is another: names the row.
    """
    if "mask" not in batch:
        raise ValueError(
            f"a batch must have tokens, targets and mask, got {sorted(batch)}; add mask, with 1 "
            "for the targets of answers"
        )
    single = single_texts(batch, padded_first=True)[1]
    mask = jnp.asarray(batch["mask"])
    plain = (mask == 0) | (mask == 1)
    if not isinstance(plain, Tracer) and not np.asarray(plain).all():
        row, slot = np.argwhere(~np.asarray(plain))[0].tolist()
        raise ValueError(
            f"a row to sum must have a mask of 0 and 1, got mask={float(mask[row, slot]):g} in row "
            f"{row}, slot {slot}; round the mask, or train on weights with a loss of tokens"
        )
    return single & plain.all(axis=1)


def shared_prompts(batch: Batch) -> tuple[Array, Array]:
    """Returns the ids that both rows of each pair begin with, and those of its shorter prompt.

    A prompt is the ids before the first target that counts; of a row without such a target, none.
    """
    mask, tokens = jnp.asarray(batch["mask"]) > 0, jnp.asarray(batch["tokens"])
    first = jnp.zeros(mask.shape[:1], jnp.int32)
    if "segment_ids" in batch:  # padding may come first
        first = (jnp.asarray(batch["segment_ids"]) > 0).argmax(axis=1)
        slots = (jnp.arange(mask.shape[1])[None] + first[:, None]) % mask.shape[1]
        tokens = jnp.take_along_axis(tokens, slots, axis=1)
    prompts = split_pairs(jnp.where(mask.any(axis=1), mask.argmax(axis=1) + 1 - first, 0))
    tokens = split_pairs(tokens)
    differs = tokens.chosen != tokens.rejected
    shared = jnp.where(differs.any(axis=1), differs.argmax(axis=1), differs.shape[1])
    return shared, jnp.minimum(prompts.chosen, prompts.rejected)


def intact_pairs(batch: Batch) -> Bool[Array, " N"]:
    """Returns True for each pair of `whole_rows` with one `pair_ids`, or without them one prompt.

    The last `BOUNDARY_IDS` of the prompts may differ, and of a prompt of several ids never the
    first. A loss over pairs is NaN where this is False, and `Trainer.fit` refuses the step.

    Raises:
        ValueError: The number of rows is odd, or concrete values differ: names the rows.
    """
    rows = batch["tokens"].shape[0]
    if rows % 2:
        raise ValueError(
            f"rows 2i and 2i + 1 must be the chosen and the rejected answer, got {rows} rows; "
            "batch with dovetail_data.pairs, and give the trainer a loss with rows=2"
        )
    whole = split_pairs(whole_rows(batch))
    same = _same_ids(batch) if "pair_ids" in batch else _same_prompts(batch)
    return same & whole.chosen & whole.rejected


def _same_ids(batch: Batch) -> Bool[Array, " N"]:
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


def _same_prompts(batch: Batch) -> Bool[Array, " N"]:
    shared, shorter = shared_prompts(batch)
    same = shared >= jnp.maximum(shorter - BOUNDARY_IDS, jnp.minimum(shorter - 1, 1))
    if not isinstance(same, Tracer) and not np.asarray(same).all():
        i = int(np.flatnonzero(~np.asarray(same))[0])
        raise ValueError(
            f"rows 2i and 2i + 1 must have one prompt, got rows {2 * i} and {2 * i + 1} with "
            f"{shared[i]} equal ids where the shorter prompt has {shorter[i]}; do not shuffle or "
            "split the rows of dovetail_data.pairs, or keep their pair_ids"
        )
    return same


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
