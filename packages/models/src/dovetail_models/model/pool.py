# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling without parameters: one vector per row of token vectors."""

from __future__ import annotations

from typing import Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

Pooling: TypeAlias = Literal["mean", "first", "last"]
# torch.nn.functional.normalize divides by at least this, and sentence-transformers uses it.
_LEAST_NORM = 1e-12


def pool(
    x: Float[Array, "B T D"],
    *,
    mask: Int[Array | np.ndarray, "B T"] | Bool[Array | np.ndarray, "B T"],
    kind: Pooling,
    normalize: bool = False,
) -> Float[Array, "B D"]:
    """Returns the mean, the first or the last of the tokens whose `mask` is not 0.

    Padding may be on either side. Computed in float32, returned in the dtype of x. Of a
    sentence-transformers model `sentence_modules` reads `kind` and `normalize`.

    Args:
        x: Token vectors [B, T, D].
        mask: Nonzero for tokens to pool [B, T].
        kind: Pooling: "mean", "first" or "last".
        normalize: Divide by the Euclidean length.

    Raises:
        ValueError: `kind` is unknown, or a concrete mask leaves a row without a token. Under jit
            such a row gives zeros.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_models import pool
        >>> x = jnp.array([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]])
        >>> pool(x, mask=jnp.array([[1, 1, 0]]), kind="mean").tolist()
        [[2.0, 3.0]]
    """
    if kind not in ("mean", "first", "last"):
        raise ValueError(
            f"kind must be 'mean', 'first' or 'last', got kind={kind!r}. "
            "Pass the one that the model was trained with."
        )
    _check(mask)
    counts = jnp.asarray(mask).astype(bool)
    if kind == "mean":
        weights = counts.astype(jnp.float32)
        weights = weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 1.0)
    else:
        first = jnp.argmax(counts, axis=1)
        last = counts.shape[1] - 1 - jnp.argmax(counts[:, ::-1], axis=1)
        index = first if kind == "first" else last
        weights = (counts & (jnp.arange(counts.shape[1]) == index[:, None])).astype(jnp.float32)
    y = (x.astype(jnp.float32) * weights[..., None]).sum(axis=1)
    if normalize:
        y = y / jnp.maximum(jnp.linalg.norm(y, axis=-1, keepdims=True), _LEAST_NORM)
    return y.astype(x.dtype)


def _check(mask: Array | np.ndarray) -> None:
    if isinstance(mask, Tracer):
        return
    empty = np.flatnonzero(~np.asarray(mask).astype(bool).any(axis=1)).tolist()
    if empty:
        raise ValueError(
            "Every row must have a token to pool, got a mask of zeros in "
            f"rows={empty}. Leave those rows out."
        )
