# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A teacher's most probable ids and their log-probabilities as fields of the batches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from dovetail_tune.chunks import map_positions
from dovetail_tune.fields.digests import model_digests
from dovetail_tune.fields.iterator import FieldIterator, add_fields
from dovetail_tune.fields.records import Column, Origin, Records
from dovetail_tune.fields.scored import ScoredFields
from dovetail_tune.logps import CHUNK, features
from dovetail_tune.types import Batch


def with_teacher(
    batches: Iterable[Batch],
    model: nnx.Module,
    directory: str | os.PathLike[str] | None = None,
    *,
    k: int,
    field: str = "teacher",
) -> FieldIterator:
    """Adds the teacher's k most probable ids at each token, computed once for each row.

    Rows are kept as `with_reference` keeps them; a record has 8 k bytes per token. Logits exist for
    a chunk of positions at a time.

    Args:
        batches: Batches on the host, as `dovetail_data` makes them.
        model: The teacher, in evaluation mode. It is used as it is now.
        directory: Folder to keep the values in, or None for memory.
        k: Ids per token, at most the vocabulary.
        field: Prefix of the fields.

    Returns:
        The batches with `field`_ids i32[B, S, k], the most probable first, and `field`_logps
        f32[B, S, k], their log-probabilities over the whole vocabulary in nats. Tokens with mask 0
        have 0 in both. `counts` as of `with_reference`.

    Raises:
        TypeError: `batches` is no iterable of batches, or the model has no `features`.
        ValueError: k is out of range, the directory has values of another model or k, or an array
            of the model lies on several processes. When iterated: a batch breaks the contract.

    Example:

        >>> import numpy as np
        >>> from flax import nnx
        >>> from dovetail_tune import with_teacher
        >>> from dovetail_tune.testing import TinyDecoder
        >>> tokens = np.array([[1, 2, 3]])
        >>> batch = {"tokens": tokens, "targets": tokens + 1, "mask": np.array([[0, 1, 1]])}
        >>> next(with_teacher([batch], TinyDecoder(rngs=nnx.Rngs(0)), k=4))["teacher_ids"].shape
        (1, 3, 4)
    """
    if k < 1:
        raise ValueError(f"k must be at least 1 id per token, got k={k}; pass for example k=32")
    ids, logps = f"{field}_ids", f"{field}_logps"
    columns = (
        Column(name=ids, dtype="<i4", per_token=True, shape=(k,)),
        Column(name=logps, dtype="<f4", per_token=True, shape=(k,)),
    )
    origin = Origin(columns=columns, scorer=f"top {k}", model=model_digests(model))

    def compute(model: Any, batch: Batch) -> dict[str, Array]:
        top = _top(model, batch, k=k)
        return {ids: top[0], logps: top[1]}

    records = Records(directory, origin)
    fields = ScoredFields(model, compute, records, names=(ids, logps), mismatched=False, sums=False)
    return add_fields(batches, fields)


def _top(model: Any, batch: Batch, *, k: int) -> tuple[Array, Array]:
    """Returns ids and log-probabilities [B, S, k]."""

    def of_chunk(x: Array, mask: Array) -> tuple[Array, Array]:
        logits = model.head(jnp.where(mask[..., None], x, 0)).astype(jnp.float32)
        if k > logits.shape[-1]:
            raise ValueError(
                f"k must be at most the vocabulary of the teacher, got k={k} with "
                f"{logits.shape[-1]} ids; pass k={logits.shape[-1]} or less"
            )
        values, ids = jax.lax.top_k(logits, k)
        logps = values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        counts = mask[..., None]
        return jnp.where(counts, ids, 0), jnp.where(counts, logps, 0.0)

    mask = jnp.asarray(batch["mask"]) > 0
    return map_positions(of_chunk, (features(model, batch), mask), chunk=CHUNK)
