# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes keys and values of new tokens into a cache of pages, in place if it is donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dovetail_kernels.arrays import check_arrays
from dovetail_kernels.dispatch import device
from dovetail_kernels.mesh import per_shard
from dovetail_kernels.paged.api import check_pages
from dovetail_kernels.paged.requests import known_integers


def paged_write(
    pages: Float[Array, "P page 2 K H"],
    k: Float[Array, "M K H"],
    v: Float[Array, "M K H"],
    *,
    slots: Int[Array, " M"] | Int[np.ndarray, " M"],
) -> Float[Array, "P page 2 K H"]:
    """Sets pages[slots // page, slots % page] = (k, v) for every slot that is not negative.

    To update in place, donate: `jax.jit(paged_write, donate_argnums=0)`. Then only the new rows are
    written. bfloat16 on CPU before jax 0.12 is an exception: XLA has no bfloat16 scatter there, and
    all pages are read and written once, still without a copy. Prefer float16 or float32 there.

    Args:
        pages: Cache [P, page, 2, K, H]. Key heads may be sharded.
        k: Keys of new tokens [M, K, H], of pages' dtype. Key heads may be sharded.
        v: Values of new tokens [M, K, H], of pages' dtype. Key heads may be sharded.
        slots: Slot of each token in the cache, i32[M]: page id times page size plus the place in
            the page. All differ. A negative slot, for padding, writes nothing.

    Returns:
        The cache with the new tokens.

    Raises:
        ValueError: Shapes or dtypes contradict each other, or a known slot is beyond the last or
            occurs twice. Under a trace, a slot beyond the last writes nothing, and of two equal
            slots either wins.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import paged_write
        >>> pages, k = jnp.zeros((2, 2, 2, 1, 1)), jnp.array([5.0, 6.0, 7.0]).reshape(3, 1, 1)
        >>> pages = paged_write(pages, k, -k, slots=jnp.array([2, -1, 1], jnp.int32))
        >>> pages[:, :, 0, 0, 0].tolist()
        [[0.0, 7.0], [5.0, 0.0]]
    """
    _check(pages, k, v, slots)
    whole = device(pages).platform == "cpu" and pages.dtype == jnp.bfloat16
    whole = whole and jax.__version_info__ < (0, 12)
    return per_shard(
        "paged_write",
        _select if whole else _scatter,
        (pages, k, v, jnp.asarray(slots, jnp.int32)),
        ("pstnh", "mnh", "mnh", "m"),
        out="pstnh",
        may="n",
        instead="Use jax.sharding.reshard to shard key heads alone.",
    )


def _scatter(pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array) -> jax.Array:
    """Scatters k and v separately: one scatter of stacked rows would copy them first."""
    page, place = _places(pages, slots)
    pages = pages.at[page, place, 0].set(k, mode="drop")
    return pages.at[page, place, 1].set(v, mode="drop")


def _select(pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array) -> jax.Array:
    """Updates in one pass over all pages: a scatter would take two, and a float32 copy of them."""
    page, place = _places(pages, slots)
    tokens = jnp.arange(len(slots), dtype=jnp.int32)
    token = jnp.full(pages.shape[:2], -1, jnp.int32).at[page, place].set(tokens, mode="drop")
    new = jnp.stack([k, v], axis=1)[token] if len(slots) else pages
    return jnp.where((token >= 0)[..., None, None, None], new, pages)


def _places(pages: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns each slot's page and its place there. A negative slot gets a page beyond the last."""
    count, size = pages.shape[:2]
    return jnp.where(slots < 0, count, slots // size), slots % size


def _check(pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array | np.ndarray) -> None:
    check_arrays("paged_write", pages=pages, k=k, v=v, slots=slots)
    check_pages(pages)
    rows = (slots.shape[0], *pages.shape[3:]) if len(slots.shape) == 1 else None
    if k.shape != rows or v.shape != rows:
        raise ValueError(
            f"k and v must be [slots, key heads, width] as slots and pages say, got "
            f"k.shape={k.shape}, v.shape={v.shape}, slots.shape={slots.shape} and "
            f"pages.shape={pages.shape}. Flatten batch and time into one axis of tokens."
        )
    if k.dtype != pages.dtype or v.dtype != pages.dtype:
        raise ValueError(
            f"k and v must have the dtype of pages, got k.dtype={k.dtype}, v.dtype={v.dtype} and "
            f"pages.dtype={pages.dtype}. Use k.astype(pages.dtype), v.astype(pages.dtype)."
        )
    if np.dtype(slots.dtype) != np.int32:
        raise ValueError(
            f"slots must be int32, got slots.dtype={slots.dtype}. Use slots.astype(jnp.int32)."
        )
    values = known_integers(slots)
    if values is None:
        return
    end = pages.shape[0] * pages.shape[1]
    used = values[values >= 0]
    if used.size and used.max() >= end:
        raise ValueError(
            f"slots must be below pages times page size, {end}, got slots[{values.argmax()}]="
            f"{values.max()}. Use page id * page size + place, and -1 for padding."
        )
    slot_ids, times = np.unique(used, return_counts=True)
    if (times > 1).any():
        raise ValueError(
            f"slots must differ from each other, got slot {slot_ids[times > 1][0]} "
            f"{times[times > 1][0]} times. Give each token its own, and -1 to padding."
        )
