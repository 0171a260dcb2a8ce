# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes keys and values of new tokens into a cache of pages, in place if it is donated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays
from dovetail_kernels.dispatch import device
from dovetail_kernels.mesh import per_shard
from dovetail_kernels.paged.pages import (
    FLOATS,
    QuantizedPages,
    check_pages,
    codes_of,
    quantized,
)
from dovetail_kernels.paged.requests import int32, known_integers


@operation
def paged_write(
    pages: Float[Array | np.ndarray, "P kv page K H"] | QuantizedPages,
    k: Float[Array | np.ndarray, "M K H"],
    v: Float[Array | np.ndarray, "M K H"] | None,
    *,
    slots: Integer[Array, " M"] | Integer[np.ndarray, " M"],
) -> Any:
    """Sets pages[slots // page, :, slots % page] = (k, v) for every slot that is not negative.

    To update in place, donate: `jax.jit(paged_write, donate_argnums=0)`. Then only the new rows are
    written. On a CPU float8, and bfloat16 before jax 0.12, are exceptions: XLA has no such scatter
    there, and all pages are read and written once, still without a copy. Prefer others there.

    Args:
        pages: Cache [P, 2, page, K, H], or `QuantizedPages`: then k and v are rounded to codes. Key
            heads may be sharded.
        k: Keys of new tokens [M, K, H], of pages' dtype; of any float dtype for codes. Key heads
            may be sharded.
        v: Values of new tokens, as k. None for pages [P, 1, page, K, H] of latent attention.
        slots: Slot of each token in the cache, integers [M]: page id times page size plus the place
            in the page. All differ. A negative slot, for padding, writes nothing.

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
        >>> pages[:, 0, :, 0, 0].tolist()
        [[0.0, 7.0], [5.0, 0.0]]
    """
    _check(pages, k, v, slots)
    codes, scales = codes_of(pages), None
    if isinstance(pages, QuantizedPages):
        scales = pages.scales
    # NumPy arrays become arrays of JAX: the caller's pages are not written to.
    arrays = [None if x is None else jnp.asarray(x) for x in (codes, scales, k, v)]
    platform = device(codes).platform
    scatter = _scatter_joined if platform == "gpu" else _scatter
    write = _select if _has_no_scatter(platform, codes.dtype) else scatter
    written = per_shard(
        "paged_write",
        functools.partial(_write, write, scatter),
        (*arrays, int32(slots)),
        ("pstnh", "pstn", "mnh", "mnh", "m"),
        out="pstnh" if scales is None else ("pstnh", "pstn"),
        may="n",
        instead="Use jax.sharding.reshard to shard key heads alone.",
    )
    return written if scales is None else QuantizedPages(codes=written[0], scales=written[1])


def _has_no_scatter(platform: str, dtype: Any) -> bool:
    """Tests whether XLA would scatter in a wider dtype, on a copy of all pages."""
    old = dtype == jnp.bfloat16 and jax.__version_info__ < (0, 12)
    return platform == "cpu" and (old or dtype == jnp.float8_e4m3fn)


def _write(
    write: Callable[..., Array],
    scatter: Callable[..., Array],
    codes: Array,
    scales: Array | None,
    k: Array,
    v: Any,
    slots: Array,
) -> Any:
    new = (k,) if v is None else (k, v)
    if scales is None:
        return write(codes, new, slots)
    new_codes, new_scales = zip(*(quantized(x, codes.dtype) for x in new), strict=True)
    return write(codes, new_codes, slots), scatter(scales, new_scales, slots)


def _scatter(pages: Array, new: tuple[Array, ...], slots: Array) -> Array:
    """Scatters k and v separately: one scatter of stacked rows would copy them first."""
    page, place = _places(pages, slots)
    for which, rows in enumerate(new):
        pages = pages.at[page, which, place].set(rows, mode="drop")
    return pages


def _scatter_joined(pages: Array, new: tuple[Array, ...], slots: Array) -> Array:
    """Scatters k and v in one launch: XLA:GPU computes the stacked rows inside the scatter."""
    page, place = _places(pages, slots)
    return pages.at[page, :, place].set(jnp.stack(new, axis=1), mode="drop")


def _select(pages: Array, new: tuple[Array, ...], slots: Array) -> Array:
    """Updates in one pass over all pages: a scatter would take two, and a float32 copy of them."""
    page, place = _places(pages, slots)
    tokens = jnp.arange(slots.shape[0], dtype=jnp.int32)
    token = jnp.full(pages.shape[::2][:2], -1, jnp.int32).at[page, place].set(tokens, mode="drop")
    which = jnp.arange(len(new))[:, None]
    rows = jnp.stack(new)[which, token[:, None]] if slots.shape[0] else pages
    return jnp.where((token >= 0)[:, None, :, None, None], rows, pages)


def _places(pages: Array, slots: Array) -> tuple[Array, Array]:
    """Returns each slot's page and its place there. A negative slot gets a page beyond the last."""
    count, size = pages.shape[0], pages.shape[2]
    return jnp.where(slots < 0, count, slots // size), slots % size


def _check(pages: Any, k: Any, v: Any, slots: Any) -> None:
    codes = codes_of(pages)
    check_arrays("paged_write", pages=codes, k=k, v=v, slots=slots)
    check_pages(pages)
    if (v is None) != (codes.shape[1] == 1):
        use = "Use v=None" if v is not None else "Pass the values"
        raise ValueError(
            f"v must be None for pages of one entry for each key, [pages, 1, page, key heads, "
            f"width], and only for them, got v={None if v is None else list(v.shape)} and "
            f"pages.shape={codes.shape}. {use}."
        )
    new = {"k": k} if v is None else {"k": k, "v": v}
    shapes = ", ".join(f"{name}.shape={x.shape}" for name, x in new.items())
    rows = (slots.shape[0], *codes.shape[3:]) if len(slots.shape) == 1 else None
    if any(x.shape != rows for x in new.values()):
        raise ValueError(
            f"k and v must be [slots, key heads, width] as slots and pages say, got {shapes}, "
            f"slots.shape={slots.shape} and pages.shape={codes.shape}. Flatten batch and time into "
            f"one axis of tokens."
        )
    _check_dtypes(pages, new, slots)
    _check_slots(codes, slots)


def _check_dtypes(pages: Any, new: dict[str, Any], slots: Any) -> None:
    dtypes = ", ".join(f"{name}.dtype={x.dtype}" for name, x in new.items())
    if isinstance(pages, QuantizedPages):
        if any(x.dtype not in FLOATS for x in new.values()):
            raise ValueError(
                f"k and v must be of {', '.join(FLOATS)}, to be rounded to codes, got {dtypes}. "
                f"Use k.astype(jnp.float32), v.astype(jnp.float32)."
            )
    elif any(x.dtype != pages.dtype for x in new.values()):
        raise ValueError(
            f"k and v must have the dtype of pages, got {dtypes} and pages.dtype={pages.dtype}. "
            f"Use k.astype(pages.dtype), v.astype(pages.dtype)."
        )
    if not jnp.issubdtype(slots.dtype, jnp.integer):
        raise ValueError(
            f"slots must be integers, got slots.dtype={slots.dtype}. Use slots.astype(jnp.int32)."
        )


def _check_slots(codes: Any, slots: Any) -> None:
    values = known_integers(slots)
    if values is None:
        return
    end = codes.shape[0] * codes.shape[2]
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
