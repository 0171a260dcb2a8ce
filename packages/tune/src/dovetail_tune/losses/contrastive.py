# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of embeddings: InfoNCE against in-batch negatives, and triplets with batch-hard mining.

Shape letters: N queries or anchors, M keys, D width of an embedding.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

Distance = Literal["euclidean", "squared", "cosine"]
Vectors: TypeAlias = Float[Array | np.ndarray, "N D"]

_LEAST_NORM = 1e-12  # torch.nn.functional.normalize divides by at least this


def info_nce(
    queries: Float[Array | np.ndarray, "N D"],
    keys: Float[Array | np.ndarray, "M D"],
    positive: Int[Array | np.ndarray, " N"] | None = None,
    *,
    temperature: float,
    symmetric: bool = False,
    ignore: Bool[Array | np.ndarray, "N M"] | None = None,
) -> Float[Array, " N"]:
    """Returns -log softmax(queries keysᵀ / temperature)[positive] of each query.

    The other keys are the negatives (1807.03748, equation 4; with unit vectors, NT-Xent of
    2002.05709, equation 1).

    Args:
        queries: Vectors [N, D].
        keys: Vectors [M, D].
        positive: Index of each query's positive among the keys. Default: key i for query i.
        temperature: Divides the scores; above 0.
        symmetric: Average with the loss of finding each query among all queries by its positive
            (CLIP, 2103.00020, figure 3).
        ignore: True for pairs of query and key that are neither positive nor negative. It does not
            remove a query's positive.

    Returns:
        Losses in nats, f32[N]. A query without negatives has 0, one whose traced `positive` is
        outside the keys has NaN.

    Raises:
        ValueError: The temperature is not above 0, there are fewer keys than queries without
            `positive`, or a concrete `positive` is outside the keys.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_tune import losses
        >>> losses.info_nce(jnp.eye(2), jnp.eye(2), temperature=0.05).shape
        (2,)
    """
    check_temperature(temperature)
    own = _positive(queries, keys, positive)
    scores = similarity(queries, keys) / temperature
    wanted = is_positive(own, keys=keys.shape[0])
    ignored = jnp.zeros_like(wanted) if ignore is None else jnp.asarray(ignore)
    # A masked sum, because a mesh that splits the queries would gather the scores for an index.
    picked = jnp.where(wanted, scores, 0.0).sum(axis=1)
    picked = jnp.where(wanted.any(axis=1), picked, jnp.nan)
    kept = jnp.where(ignored & ~wanted, -jnp.inf, scores)
    losses = jax.nn.logsumexp(kept, axis=1) - picked
    if not symmetric:
        return losses
    # Column i holds the scores of all queries with the positive of query i.
    columns, ignored = (
        x[:, : len(own)] if positive is None else jnp.take(x, own, axis=1, mode="clip")
        for x in (scores, ignored)
    )
    kept = jnp.where(ignored & ~jnp.eye(len(own), dtype=bool), -jnp.inf, columns)
    return (losses + jax.nn.logsumexp(kept, axis=0) - picked) / 2


def triplet(
    anchor: Vectors,
    positive: Vectors,
    negative: Vectors,
    *,
    margin: float,
    distance: Distance = "euclidean",
) -> Float[Array, " N"]:
    """Returns max(d(anchor, positive) - d(anchor, negative) + margin, 0) of each triplet.

    Args:
        anchor: Vectors [N, D].
        positive: Vectors [N, D] that belong to the anchors.
        negative: Vectors [N, D] that do not.
        margin: Least difference of the distances that costs nothing, in units of the distance.
        distance: "squared" is that of FaceNet (1503.03832, equation 3), "euclidean" its root, and
            "cosine" 1 - cosine similarity.

    Returns:
        Losses, f32[N]. Equal vectors have the gradient 0.

    Raises:
        ValueError: The margin is not above 0, or the distance is unknown.
    """
    check_margin(margin)
    to_positive = distances(anchor, positive, kind=distance)
    to_negative = distances(anchor, negative, kind=distance)
    return jnp.maximum(to_positive - to_negative + margin, 0.0)


class Hardest(NamedTuple):
    """The hardest positive and negative of each row.

    Attributes:
        positive: Row of the same class that is farthest, i32[N].
        negative: Row of another class that is nearest, i32[N].
        exists: True for rows that have both.
    """

    positive: Int[Array, " N"]
    negative: Int[Array, " N"]
    exists: Bool[Array, " N"]


def hardest(
    vectors: Vectors,
    classes: Int[Array | np.ndarray, " N"],
    *,
    distance: Distance = "euclidean",
    where: Bool[Array | np.ndarray, " N"] | None = None,
) -> Hardest:
    """Returns the triplets of batch-hard mining (1703.07737, equation 5), without a gradient.

    Rows of nearly equal distance are told apart up to the rounding of a float32 product.

    Args:
        vectors: Vectors [N, D].
        classes: Class of each row. Rows of one class are positives of each other.
        distance: Distance that the triplets are for; see `triplet`.
        where: False for rows to leave out. Default: all take part.

    Returns:
        Indices of rows, i32[N]. They say nothing where `exists` is False.

    Raises:
        ValueError: The distance is unknown.
    """
    check_distance(distance)
    x = jax.lax.stop_gradient(jnp.asarray(vectors, jnp.float32))
    classes = jnp.asarray(classes)
    squares = (x**2).sum(axis=1)
    if distance == "cosine":
        x, squares = unit(x), jnp.zeros_like(squares)
    # As ordered as the distances: each row's own square is constant.
    far = squares[None] - 2 * similarity(x, x)
    used = jnp.ones(x.shape[0], bool) if where is None else jnp.asarray(where)
    both = used[:, None] & used[None]
    same = both & (classes[:, None] == classes[None]) & ~jnp.eye(x.shape[0], dtype=bool)
    other = both & (classes[:, None] != classes[None])
    return Hardest(
        positive=jnp.where(same, far, -jnp.inf).argmax(axis=1).astype(jnp.int32),
        negative=jnp.where(other, far, jnp.inf).argmin(axis=1).astype(jnp.int32),
        exists=same.any(axis=1) & other.any(axis=1),
    )


def similarity(
    a: Float[Array | np.ndarray, "N D"], b: Float[Array | np.ndarray, "M D"]
) -> Float[Array, "N M"]:
    """Returns the dot products of rows of a and b in float32.

    At full precision: a temperature of 0.05 multiplies the rounding of a fast product by 20.
    """
    a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    return jnp.einsum("nd,md->nm", a, b, precision=jax.lax.Precision.HIGHEST)


def is_positive(own: Int[Array, " N"], *, keys: int) -> Bool[Array, "N M"]:
    """Returns True at the positive of each query."""
    return jnp.arange(keys)[None] == own[:, None]


def distances(a: Vectors, b: Vectors, *, kind: Distance) -> Float[Array, " N"]:
    """Returns the distance of each row of a to the same row of b, f32[N].

    Args:
        a: Vectors [N, D].
        b: Vectors [N, D].
        kind: See `triplet`.
    """
    check_distance(kind)
    a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    if kind == "cosine":
        return 1 - (unit(a) * unit(b)).sum(axis=1)
    squares = ((a - b) ** 2).sum(axis=1)
    return squares if kind == "squared" else _root(squares)


def check_temperature(temperature: float) -> None:
    """Raises ValueError unless temperature > 0."""
    if not temperature > 0:
        raise ValueError(
            f"temperature must be above 0, got temperature={temperature}; pass for example 0.05"
        )


def check_margin(margin: float) -> None:
    """Raises ValueError unless margin > 0."""
    if not margin > 0:
        raise ValueError(
            f"margin must be above 0, or equal vectors cost nothing, got margin={margin}; pass for "
            "example 0.2 for unit vectors"
        )


def check_distance(distance: str) -> None:
    """Raises ValueError unless the distance is known."""
    known = get_args(Distance)
    if distance not in known:
        raise ValueError(
            f"distance must be one of {', '.join(known)}, got distance={distance!r}; pass "
            "distance='euclidean'"
        )


def unit(x: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """Returns rows of x divided by their norm. Rows of a norm below 1e-12 give 0, gradient 0."""
    squares = (x**2).sum(axis=1, keepdims=True)
    some = squares > _LEAST_NORM**2
    return jnp.where(some, x * jax.lax.rsqrt(jnp.where(some, squares, 1.0)), 0.0)


def _root(squares: Float[Array, " N"]) -> Float[Array, " N"]:
    """Returns the square root, with gradient 0 at 0."""
    some = squares > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1.0)), 0.0)


def _positive(
    queries: Float[Array | np.ndarray, "N D"],
    keys: Float[Array | np.ndarray, "M D"],
    positive: Int[Array | np.ndarray, " N"] | None,
) -> Int[Array, " N"]:
    count, available = queries.shape[0], keys.shape[0]
    if positive is None:
        if available < count:
            raise ValueError(
                f"every query must have a key, got {count} queries and {available} keys; pass keys "
                "with key i the positive of query i, or positive="
            )
        return jnp.arange(count)
    if not isinstance(positive, Tracer):
        outside = np.flatnonzero((np.asarray(positive) < 0) | (np.asarray(positive) >= available))
        if outside.size:
            i = int(outside[0])
            raise ValueError(
                f"positive must be indices of {available} keys, got positive[{i}]="
                f"{int(positive[i])}; pass numbers from 0 to {available - 1}"
            )
    own = jnp.asarray(positive)
    # Negative indices count from the end: move them past it, where they give NaN.
    return jnp.where(own < 0, available, own)
