# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sampling of one token per row of logits, with temperature and filters per row.

By its definition, for one row of logits z:

    scaled = (z - max(z)) / temperature
    ordered = sort(z, descending=True)
    keep = z >= ordered[top_k - 1]
    p = where(ordered >= ordered[top_k - 1], exp(scaled of ordered), 0)
    keep &= z >= min(ordered[cumsum(p) - p < top_p * sum(p)])
    keep &= exp(scaled) >= min_p
    token = categorical(key, where(keep, scaled, -inf))

`reference` is this as a program. `thresholds` keeps the same tokens without a sort, and `draw`
draws from them with two random numbers.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from dovetail_kernels.argument_names import operation
from dovetail_kernels.sampling.draw import draw
from dovetail_kernels.sampling.options import PerRow, check_logits, per_row
from dovetail_kernels.sampling.rows import over_rows, suited
from dovetail_kernels.sampling.thresholds import warp

_AXES = ("bv", "b", "b", "b", "b")


@operation
def sample(
    logits: Float[Array | np.ndarray, "B V"],
    *,
    keys: Key[Array, " B"],
    temperature: PerRow = 1.0,
    top_k: PerRow | None = None,
    top_p: PerRow | None = None,
    min_p: PerRow | None = None,
) -> Int[Array, " B"]:
    """Draws a token of each row from softmax(logits / temperature) over the kept tokens.

    The filters apply in the order and with the meaning of transformers: `top_k`, then `top_p` among
    the rest, then `min_p`. Each option is a number for all rows or an array [B]. `adjust_logits`
    comes before: allow-mask, bias and penalties. `token_logprobs` comes after.

    Args:
        logits: Logits [B, V] in float32, bfloat16 or float16.
        keys: One key per row [B], such as `jax.random.split(key, B)`. They must be threefry: other
            kinds draw differently in another batch.
        temperature: Divides the logits; finite, at least 0. 0 takes the largest logit, of equal
            ones the first.
        top_k: Keeps the k largest logits and all equal to the k-th. An integer; 0 keeps all.
        top_p: Keeps the fewest of the most likely tokens whose probabilities reach p, and all as
            likely as the last of them (transformers keeps those first in its sort). In (0, 1]; 1
            keeps all. If a sum of probabilities is within float32 rounding of p, either result is
            right.
        min_p: Keeps tokens at least `min_p` times as likely as the likeliest (2407.01082). In
            [0, 1]; 0 keeps all.

    Returns:
        Tokens i32[B]. -1 for a row with NaN, with +inf or with nothing above -inf, and inside
        `jax.jit` for a row with an option out of range. Sums in float32 and draws of 23 bits may
        change the probability by 1e-4 at most, in the least likely tokens.

    Raises:
        ValueError: Shapes do not fit, an option is out of range, keys are not threefry, or V is
            sharded by an Explicit mesh.
        TypeError: A dtype is wrong.

    Example:

        >>> import jax
        >>> from dovetail_kernels import sample
        >>> logits = jax.numpy.array([[0.0, 5.0, 1.0], [2.0, 0.0, 1.0]])
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> sample(logits, keys=keys, temperature=0).tolist()
        [1, 0]
        >>> sample(logits, keys=keys, temperature=0.8, top_k=1).tolist()
        [1, 0]
    """
    check_logits("sample", logits)
    options = _options(logits.shape[0], temperature, top_k, top_p, min_p)
    _check_keys(keys, logits)
    z = jnp.asarray(logits)
    return over_rows("sample", suited(_sample, z), (z, keys, *options), (*_AXES, "b"), out="b")


@operation
def warp_logits(
    logits: Float[Array | np.ndarray, "B V"],
    *,
    temperature: PerRow = 1.0,
    top_k: PerRow | None = None,
    top_p: PerRow | None = None,
    min_p: PerRow | None = None,
) -> Float[Array, "B V"]:
    """Computes `(logits - maximum) / temperature`, with -inf for tokens that `sample` never draws.

    The softmax of the result is the distribution of `sample`, for comparison in speculative
    decoding. Each option is a number for all rows or an array [B].

    Args:
        logits: Logits [B, V] in float32, bfloat16 or float16.
        temperature: As in `sample`. At 0 the chosen token has 0 and every other -inf.
        top_k: As in `sample`.
        top_p: As in `sample`.
        min_p: As in `sample`.

    Returns:
        Logits f32[B, V]. A row for which `sample` returns -1 is NaN.

    Raises:
        ValueError: Shapes do not fit, an option is out of range, or V is sharded by an Explicit
            mesh.
        TypeError: A dtype is wrong.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import warp_logits
        >>> warp_logits(jnp.array([[2.0, 1.0, 0.0]]), temperature=0.5, top_k=2).tolist()
        [[0.0, -2.0, -inf]]
    """
    check_logits("warp_logits", logits)
    options = _options(logits.shape[0], temperature, top_k, top_p, min_p)
    z = jnp.asarray(logits)
    return over_rows("warp_logits", suited(warp, z), (z, *options), _AXES, out="bv")


def _options(
    batch: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any
) -> tuple[Array | None, ...]:
    """Checks the options and returns each as [B]. A filter that is None stays None."""
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    rows = (None if x is None else per_row(name, x, batch) for name, x in filters.items())
    return per_row("temperature", temperature, batch), *rows


def _check_keys(keys: Any, logits: Any) -> None:
    """Raises an error for keys other than threefry keys [B]."""
    if not (isinstance(keys, Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)):
        came = f"keys.dtype={keys.dtype}" if isinstance(keys, Array) else f"keys={keys!r}"
        raise TypeError(
            f"keys must be typed keys, got {came}. Use jax.random.key and jax.random.split."
        )
    kind = str(jax.random.key_impl(keys))
    if "rbg" in kind:
        raise ValueError(
            f"keys must be threefry, got keys of {kind!r}: their draws for a row depend on its "
            "batch. Use jax.random.key(seed, impl='threefry2x32')."
        )
    if keys.shape != logits.shape[:1]:
        raise ValueError(
            f"keys must be [B] for logits [B, V], got keys.shape={keys.shape} and logits.shape="
            f"{logits.shape}. Use jax.random.split(key, {logits.shape[0]})."
        )


@functools.partial(jax.jit, static_argnames="unrolled")
def _sample(logits: Array, keys: Array, *options: Any, unrolled: bool = False) -> Array:
    warped = warp(logits, *options, unrolled=unrolled)
    token = draw(jnp.exp(warped), keys)
    return jnp.where(jnp.isnan(warped[:, 0]), -1, token)
