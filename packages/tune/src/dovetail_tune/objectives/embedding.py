# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of embedding models, in the trainer's contract.

More negatives need a larger batch, and microbatches would take the negatives away. These losses
therefore see the whole batch, and encode it in chunks: all rows without their activations, then one
chunk again at a time in the backward pass (GradCache, 2101.06983). The result does not depend on
the chunks beyond rounding, and memory is that of one chunk.

On a mesh that splits the rows (Auto axes, under `jax.jit`), embeddings are gathered, B x D numbers,
and activations never. `jax.shard_map` is neither needed nor supported: each shard would see its own
rows alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from dovetail_tune import _elsewhere, losses
from dovetail_tune.chunks import map_rows, row_shards
from dovetail_tune.losses.contrastive import (
    Distance,
    check_distance,
    check_margin,
    check_temperature,
    distances,
    is_positive,
    similarity,
    unit,
)
from dovetail_tune.rows import mean_over
from dovetail_tune.types import Batch, Loss, Metric, Term, grouped

#: encode(model, batch) -> vectors [b, D], one per row of the batch.
Encode: TypeAlias = Callable[[Any, Batch], Array]

_TRIPLET = 3  # rows: anchor, positive, negative


@_elsewhere.call
def info_nce(
    *,
    encode: Encode,
    temperature: float = 0.05,
    rows: Literal[2, 3] = 2,
    symmetric: bool = False,
    chunks: int = 1,
) -> Loss:
    """Returns the contrastive loss of queries against all keys of the batch (1807.03748).

    Rows 2i are queries and rows 2i + 1 their positives; with rows=3, rows 3i + 2 are hard
    negatives. Every positive and hard negative is a key of every query. The batch may have

    - `group_ids`, i32[B]: two pairs of query and positive with an id in common are no negatives of
      each other, and a hard negative with an id of a pair is none of that pair;
    - `segment_ids`, i32[B, S]: a row without a token is left out, such as a missing hard negative.

    Metrics: accuracy (the positive scores above all negatives), similarity_positive,
    similarity_negative (means of the dot products), negatives (number per query).

    Args:
        encode: Maps (model, batch) to one vector per row [b, D]: `mean_pooled()`, or a function.
            It must not change the model if chunks > 1.
        temperature: Divides the dot products; above 0. For a learned one, let `encode` multiply
            unit vectors by the square root of a parameter, and pass 1.
        rows: Rows of a group.
        symmetric: Average with the loss of finding the query among all queries by its positive.
        chunks: Parts in which the rows are encoded; a divisor of the groups of the batch. On a
            mesh, of the groups of each device that splits the rows.

    Returns:
        A loss with `whole_batch` True: train it with accumulate=1.

    Raises:
        ValueError: An option is out of range. When called: the batch has less than two groups,
            part of one, or groups that the chunks do not divide, or a field of another shape.
        TypeError: `encode` is no function. When called: it returns no vectors.

    Example:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dovetail_tune import info_nce, mean_loss, mean_pooled
        >>> from dovetail_tune.testing import TinyDecoder
        >>> loss = mean_loss(info_nce(encode=mean_pooled(), chunks=2))
        >>> batch = {"tokens": jnp.arange(12).reshape(4, 3)}
        >>> loss(TinyDecoder(rngs=nnx.Rngs(0)), batch)[0].shape
        ()
    """
    check_temperature(temperature)
    _check_encoding(encode, chunks)
    if rows not in (2, 3):
        raise ValueError(
            f"rows must be 2 (query, positive) or 3 (and a hard negative), got rows={rows}; pass "
            "rows=2"
        )

    def loss(model: Any, batch: Any, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        total = _rows(batch, group=rows, least=2 if rows == 2 else 1)
        used = _used(batch, total).reshape(-1, rows)
        vectors = _encoded(encode, model, batch, chunks=chunks, group=rows)
        vectors = jnp.where(used.reshape(-1, 1), vectors, 0.0)
        vectors = vectors.reshape(-1, rows, vectors.shape[1])
        queries, keys = vectors[:, 0], _by_slot(vectors[:, 1:])
        ignore = _joined(batch, rows) | ~used[:, :1] | ~_by_slot(used[:, 1:])[None]
        counts = used[:, 0] & used[:, 1]
        values = losses.info_nce(
            queries, keys, temperature=temperature, symmetric=symmetric, ignore=ignore
        )
        return {
            "info_nce": mean_over(values, counts),
            **_metrics(queries, keys, ignore, counts),
        }

    return grouped(loss, rows=rows, whole_batch=True)


def triplet(
    *,
    encode: Encode,
    margin: float,
    rows: Literal[1, 3] = 3,
    distance: Distance = "euclidean",
    chunks: int = 1,
) -> Loss:
    """Returns the triplet loss max(d(anchor, positive) - d(anchor, negative) + margin, 0).

    Rows 3i, 3i + 1 and 3i + 2 are anchor, positive and negative (1503.03832). With rows=1 the batch
    has `group_ids` i32[B], the class of each row, and each row is an anchor with the farthest of
    its class and the nearest of the others (batch hard, 1703.07737). Rows without a token in
    `segment_ids` are left out, as are anchors without a positive or a negative.

    Metrics: accuracy (the positive is nearer), distance_positive, distance_negative.

    Args:
        encode: Maps (model, batch) to one vector per row [b, D]: `mean_pooled()`, or a function.
            It must not change the model if chunks > 1.
        margin: Least difference of the distances that costs nothing; above 0.
        rows: 3 for triplets, 1 for batch-hard mining.
        distance: "euclidean", "squared" (FaceNet's) or "cosine".
        chunks: Parts in which the rows are encoded, as in `info_nce`.

    Returns:
        A loss. With rows=1 its `whole_batch` is True: train it with accumulate=1.

    Raises:
        ValueError: An option is out of range. When called: the batch has a part of a triplet, no
            `group_ids` with rows=1, groups that the chunks do not divide, or a field of another
            shape.
        TypeError: `encode` is no function. When called: it returns no vectors.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_tune import mean_loss, triplet
        >>> loss = mean_loss(triplet(encode=lambda w, batch: batch["x"] * w, margin=0.5))
        >>> batch = {"x": jnp.array([[0.0], [1.0], [1.25]])}
        >>> float(loss(jnp.ones(()), batch)[0])
        0.25
    """
    check_margin(margin)
    check_distance(distance)
    _check_encoding(encode, chunks)
    if rows not in (1, _TRIPLET):
        raise ValueError(
            f"rows must be 3 (anchor, positive, negative) or 1 (mined by group_ids), got "
            f"rows={rows}; pass rows=3"
        )

    def loss(model: Any, batch: Any, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        used = _used(batch, _rows(batch, group=rows, least=1))
        ids = _ids(batch, rows=1) if rows == 1 else None
        vectors = _encoded(encode, model, batch, chunks=chunks, group=rows)
        vectors = jnp.where(used[:, None], vectors, 0.0)
        if ids is None:
            anchor, positive, negative = (vectors[i::_TRIPLET] for i in range(_TRIPLET))
            counts = used.reshape(-1, _TRIPLET).all(axis=1)
        else:
            mined = losses.hardest(vectors, ids[:, 0], distance=distance, where=used)
            anchor, positive, negative = vectors, vectors[mined.positive], vectors[mined.negative]
            counts = mined.exists
        values = losses.triplet(anchor, positive, negative, margin=margin, distance=distance)
        near = jax.lax.stop_gradient(distances(anchor, positive, kind=distance))
        far = jax.lax.stop_gradient(distances(anchor, negative, kind=distance))
        return {
            "triplet": mean_over(values, counts),
            "accuracy": Metric(*mean_over((near < far).astype(jnp.float32), counts)),
            "distance_positive": Metric(*mean_over(near, counts)),
            "distance_negative": Metric(*mean_over(far, counts)),
        }

    return grouped(loss, rows=rows, whole_batch=rows == 1)


def mean_pooled(
    *,
    normalize: bool = True,
    mask: str | None = None,
    attention: Callable[..., Any] | None = None,
) -> Encode:
    """Returns an encoder of texts: the mean of a model's features over the tokens of each row.

    The model is an encoder, whose `features` returns the features [b, S, D], or a decoder, whose
    `features` returns them first. It receives `tokens`, and `positions` and `segment_ids` if the
    batch has them.

    Args:
        normalize: Divide by the Euclidean norm.
        mask: Field [b, S] that is above 0 for the tokens to average, for example without an
            instruction. Default: `segment_ids`, and all tokens without that field.
        attention: The model's attention. Default: its own.

    Returns:
        (model, batch) -> f32[b, D]. A row without a token to average gives 0. A row of several
        segments, which is no single text, gives NaN, or a ValueError if it is concrete.

    Raises:
        ValueError: When called: the batch has no `tokens`, not the field of `mask`, or a `mask`
            field whose use is not said.
        TypeError: When called: the model has no `features`.
    """

    def encode(model: Any, batch: Batch) -> Float[Array, "b D"]:
        counts = _averaged(batch, mask)
        if not callable(getattr(model, "features", None)):
            raise TypeError(
                f"mean_pooled needs a model with features, got {type(model).__name__}; pass an "
                "encoder or a decoder, or a function as encode"
            )
        options = {name: batch[name] for name in ("positions", "segment_ids") if name in batch}
        if attention is not None:
            options["attention"] = attention
        x = model.features(jnp.asarray(batch["tokens"]), **options)
        x = jnp.asarray(x[0] if isinstance(x, tuple) else x, jnp.float32)
        sums = jnp.where(counts[..., None], x, 0.0).sum(axis=1)
        means = sums / jnp.maximum(counts.sum(axis=1, keepdims=True), 1).astype(jnp.float32)
        means = unit(means) if normalize else means
        return jnp.where(_one_segment(batch)[:, None], means, jnp.nan)

    return encode


def _metrics(
    queries: Float[Array, "N D"], keys: Float[Array, "M D"], ignore: Array, counts: Array
) -> dict[str, Metric]:
    queries, keys = jax.lax.stop_gradient((queries, keys))
    scores = similarity(queries, keys)
    own = is_positive(jnp.arange(len(queries)), keys=len(keys))
    others = ~own & ~ignore
    number = others.sum(axis=1).astype(jnp.float32)
    positive = jnp.where(own, scores, 0.0).sum(axis=1)
    best = jnp.where(others, scores, -jnp.inf).max(axis=1)
    mean = jnp.where(others, scores, 0.0).sum(axis=1) / jnp.maximum(number, 1.0)
    values = {
        "accuracy": ((positive > best).astype(jnp.float32), counts),
        "similarity_positive": (positive, counts),
        "similarity_negative": (mean, counts & (number > 0)),
        "negatives": (number, counts),
    }
    return {name: Metric(*mean_over(*value)) for name, value in values.items()}


def _encoded(
    encode: Encode, model: Any, batch: Batch, *, chunks: int, group: int
) -> Float[Array, "B D"]:
    """Returns the vectors of all rows in float32, encoded in chunks."""

    def vectors(batch: Batch) -> Array:
        x = jnp.asarray(encode(model, batch))
        rows = len(jax.tree.leaves(batch)[0])
        if x.ndim != 2 or len(x) != rows or not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(
                f"encode must return a vector per row, float[{rows}, D], got "
                f"{x.dtype}{list(x.shape)}; pool the features, for example with mean_pooled()"
            )
        return x.astype(jnp.float32)

    groups, shards = len(jax.tree.leaves(batch)[0]) // group, row_shards()
    if chunks > 1 and groups % chunks == 0 and groups // chunks % shards:
        raise ValueError(
            f"the groups of a chunk must divide among the {shards} devices that split the rows, "
            f"got {groups} groups in chunks={chunks}; pass a divisor of "
            f"{max(1, groups // shards)} as chunks, or more rows"
        )
    return map_rows(vectors, dict(batch), chunks=chunks, group=group)


def _rows(batch: Batch, *, group: int, least: int) -> int:
    """Returns the number of rows of a batch of at least `least` whole groups."""
    sizes = {name: len(x) for name, x in batch.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(
            f"all fields of a batch must have one number of rows, got {sizes}; leave out the "
            "fields that are not of rows"
        )
    total = next(iter(sizes.values()))
    if total % group or total // group < least:
        raise ValueError(
            f"a batch must have whole groups of {group} rows, at least {least}, got {total} rows; "
            f"pass for example {group * max(least, -(-total // group))}"
        )
    return total


def _used(batch: Batch, rows: int) -> Bool[Array, " B"]:
    """Returns True for rows with a token, or for all without `segment_ids`."""
    if "segment_ids" not in batch:
        return jnp.ones(rows, bool)
    return (jnp.asarray(batch["segment_ids"]) > 0).any(axis=1)


def _ids(batch: Batch, *, rows: int) -> Int[Array, "N rows"]:
    """Returns `group_ids` by group of rows."""
    if "group_ids" not in batch:
        raise ValueError(
            f"triplet with rows=1 needs group_ids i32[B] in the batch, got {sorted(batch)}; add "
            "the class of each row, or pass rows=3"
        )
    ids = jnp.asarray(batch["group_ids"])
    if ids.ndim != 1:
        raise ValueError(
            f"group_ids must be i32[B], one per row, got {ids.dtype}{list(ids.shape)}; pass an id "
            "per row"
        )
    return ids.reshape(-1, rows)


def _joined(batch: Batch, rows: int) -> Bool[Array, "N M"]:
    """Returns True for keys that `group_ids` say are no negatives of a query."""
    total = len(jax.tree.leaves(dict(batch))[0])
    if "group_ids" not in batch:
        return jnp.zeros((total // rows, total // rows * (rows - 1)), bool)
    ids = _ids(batch, rows=rows)
    slots = [ids[:, :2], *(ids[:, i : i + 1] for i in range(2, rows))]  # pairs, then negatives
    pairs = ids[:, :2]
    # [i, a, j, b]: id a of pair i is id b of the key's group j.
    equal = [pairs[:, :, None, None] == other[None, None] for other in slots]
    return jnp.concatenate([x.any(axis=(1, 3)) for x in equal], axis=1)


def _by_slot(x: Array) -> Array:
    """Returns [N, k, ...] as [k N, ...]: all positives, then all hard negatives."""
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])


def _averaged(batch: Batch, mask: str | None) -> Bool[Array, "b S"]:
    """Returns True for the tokens to average."""
    name = mask or "segment_ids"
    missing = {"tokens", *([mask] if mask else [])} - set(batch)
    if missing:
        raise ValueError(
            f"mean_pooled needs {', '.join(sorted(missing))} in the batch, got {sorted(batch)}; "
            "add the field, or pass a function as encode"
        )
    if name in batch:
        return jnp.asarray(batch[name]) > 0
    if "mask" in batch:
        raise ValueError(
            f"mean_pooled needs segment_ids in a batch with a mask, got {sorted(batch)}; add "
            "segment_ids, 1 for tokens and 0 for padding, and mask='mask' to average fewer"
        )
    return jnp.ones(jnp.shape(batch["tokens"]), bool)


def _one_segment(batch: Batch) -> Bool[Array, " b"]:
    """Returns False for rows of several segments. Raises ValueError if they are concrete."""
    if "segment_ids" not in batch:
        return jnp.ones(len(batch["tokens"]), bool)
    ids = jnp.asarray(batch["segment_ids"])
    single = ((ids == 0) | (ids == ids.max(axis=1, keepdims=True))).all(axis=1)
    if not isinstance(single, Tracer) and not np.asarray(single).all():
        i = int(np.flatnonzero(~np.asarray(single))[0])
        raise ValueError(
            f"a row must be one text, got segment_ids up to {int(ids[i].max())} in row {i}; do not "
            "pack the rows of an embedding model"
        )
    return single


def _check_encoding(encode: Any, chunks: int) -> None:
    if not callable(encode):
        raise TypeError(
            f"encode must be a function of (model, batch), got {encode!r}; pass for example "
            "mean_pooled()"
        )
    if chunks < 1:
        raise ValueError(f"chunks must be at least 1, got chunks={chunks}; pass 1 for no parts")
