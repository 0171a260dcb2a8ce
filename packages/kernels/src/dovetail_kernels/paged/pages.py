# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The cache: pages of keys and values, as floats or as codes with scales."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail_kernels.arrays import absmax
from dovetail_kernels.symbolic import is_symbolic

FLOATS = ("bfloat16", "float16", "float32", "float64")
# The largest code: that of the largest element of a vector.
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedPages:
    """Pages of codes: entry = code * scale, with one scale for each key or value of a head.

    For `paged_attention` and `paged_write`, in place of an array of pages. An element x of a vector
    with the largest magnitude m is off by at most m / 254 (int8), or by |x| / 16 and at least
    m / 448 / 1024 (float8_e4m3fn). A key or value that is not finite reads as NaN.

    Attributes:
        codes: Codes [P, 2, page, K, H], int8 or float8_e4m3fn; [P, 1, page, K, H] for latent
            attention.
        scales: Scales f32[P, 2, page, K].

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import QuantizedPages, paged_write
        >>> pages = QuantizedPages.zeros((2, 2, 4, 1, 2), "int8")
        >>> k = jnp.array([[[127.0, -64.0]]])
        >>> pages = paged_write(pages, k, k / 127, slots=jnp.array([1]))
        >>> pages.codes[0, :, 1, 0].tolist(), pages.scales[0, 0, 1, 0].tolist()
        ([[127, -64], [127, -64]], 1.0)
    """

    codes: Any  # arrays, or what stands for them in a pytree
    scales: Any

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: Any = "int8") -> QuantizedPages:
        """Returns an empty cache.

        Args:
            shape: Shape of the codes.
            dtype: "int8" or "float8_e4m3fn".
        """
        pages = cls(codes=jnp.zeros(shape, dtype), scales=jnp.zeros(shape[:-1], jnp.float32))
        check_pages(pages)
        return pages


def codes_of(pages: Any) -> Any:
    """Returns the array [P, 2, page, K, H]: the codes, or the pages themselves."""
    return pages.codes if isinstance(pages, QuantizedPages) else pages


def quantized(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Returns the codes of the vectors x [..., H], and their scales f32[...].

    A vector that is not finite has the scale inf and codes of 0: their product is NaN.
    """
    x, largest = x.astype(jnp.float32), LARGEST[jnp.dtype(dtype).name]
    scales = absmax(x, axis=-1) / largest
    fits = jnp.isfinite(scales) & (scales > 0)
    steps = jnp.where(fits[..., None], x / jnp.where(fits, scales, 1)[..., None], 0)
    # A scale below the smallest normal number is inexact: its codes may exceed the largest.
    steps = jnp.clip(steps, -largest, largest)
    return (jnp.round(steps) if dtype == jnp.int8 else steps).astype(dtype), scales


def check_pages(pages: Any) -> None:
    """Checks the shape and the dtype of a cache.

    Raises:
        ValueError: `pages` is not [P, 2, page, K, H] or [P, 1, page, K, H] with a supported dtype
            and fewer than 2**31 keys, or the scales do not fit the codes.
    """
    array = codes_of(pages)
    if len(array.shape) != 5 or array.shape[1] not in (1, 2) or 0 in array.shape[1:]:
        swapped = len(array.shape) == 5 and array.shape[2] in (1, 2)
        use = "pages.swapaxes(1, 2)" if swapped else "jnp.stack([k, v], axis=1) of such a k, v"
        raise ValueError(
            f"pages must be [pages, 2, page, key heads, width], its second axis keys and values "
            f"(or 1 entry, with value_width), got pages.shape={tuple(array.shape)}. Use {use}."
        )
    if isinstance(pages, QuantizedPages):
        _check_scales(pages)
    elif array.dtype not in FLOATS:
        raise ValueError(
            f"pages must be of {', '.join(FLOATS)}, got pages.dtype={array.dtype}. Convert them to "
            f"one, as pages.astype(jnp.bfloat16), or use QuantizedPages for codes with scales."
        )
    keys = array.shape[0] * array.shape[2]
    if not is_symbolic(keys) and keys >= 2**31:
        raise ValueError(
            f"pages must hold fewer than 2**31 keys, which i32 slots can name, got "
            f"pages.shape={tuple(array.shape)}. Split the cache."
        )


def _check_scales(pages: QuantizedPages) -> None:
    codes, scales = pages.codes, pages.scales
    if jnp.dtype(codes.dtype).name not in LARGEST:
        raise ValueError(
            f"QuantizedPages needs codes of {', '.join(LARGEST)}, got codes.dtype={codes.dtype}. "
            f"Use QuantizedPages.zeros(shape, 'int8'), and pages of floats as they are."
        )
    if tuple(scales.shape) != tuple(codes.shape[:-1]) or scales.dtype != jnp.float32:
        raise ValueError(
            f"QuantizedPages needs scales float32{list(codes.shape[:-1])}, one for each vector of "
            f"codes, got {scales.dtype}{list(scales.shape)}. Use QuantizedPages.zeros(shape)."
        )
