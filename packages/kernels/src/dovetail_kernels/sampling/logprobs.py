# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of drawn tokens and of the likeliest ones, without those of all tokens."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int, Int32

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays, known
from dovetail_kernels.sampling.options import check_logits
from dovetail_kernels.sampling.rows import largest, over_rows


class TokenLogprobs(NamedTuple):
    """Log-probabilities of a token of each row, and of the k likeliest tokens.

    Attributes:
        logprobs: log p of the token, f32[B].
        ranks: 1 + the number of likelier tokens, i32[B].
        top_tokens: The k likeliest tokens in descending order, of equal ones the first, i32[B, k].
        top_logprobs: Their log p, f32[B, k].
    """

    logprobs: Float[Array, " B"]
    ranks: Int32[Array, " B"]
    top_tokens: Int32[Array, "B K"]
    top_logprobs: Float[Array, "B K"]


@operation
def token_logprobs(
    logits: Float[Array | np.ndarray, "B V"],
    tokens: Int[Array | np.ndarray, " B"],
    *,
    k: int = 0,
) -> TokenLogprobs:
    """Computes log softmax(logits) of a token of each row, its rank, and the k likeliest tokens.

    These are `logprobs` and `top_logprobs` of OpenAI's API and of vLLM. The logits decide their
    meaning: those of the model, as in vLLM by default, of `adjust_logits`, or of `warp_logits`.

    Args:
        logits: Logits [B, V] in float32, bfloat16 or float16. The arithmetic is float32, and no
            array [B, V] of log-probabilities is made.
        tokens: Token ids i32[B], such as from `sample`. -1 stands for none.
        k: Number of the likeliest tokens, from 0 to V. Above 0, rows sharded by an Auto mesh are
            gathered by XLA's top-k; an Explicit mesh or `jax.shard_map` leaves them in place.

    Returns:
        `TokenLogprobs`, with these values in place of a number:

        - A token with logit -inf has -inf and the last rank. OpenAI's servers write -9999.0.
        - A row with token -1 has log-probability NaN and rank 0. Its likeliest tokens are right.
        - A row with NaN, with +inf or with nothing above -inf has NaN, rank 0 and tokens -1.
        - Where fewer than k tokens are above -inf, the others are -1 with -inf.
        - Inside `jax.jit` a token out of range is as -1.

        vLLM's rank counts equally likely tokens too, so that a greedy token can have rank 2.

    Raises:
        ValueError: Shapes do not fit, k or a token is out of range, or V is sharded by an Explicit
            mesh.
        TypeError: A dtype is wrong.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import token_logprobs
        >>> found = token_logprobs(jnp.log(jnp.array([[1.0, 2.0, 5.0]])), jnp.array([1]), k=2)
        >>> found.ranks.tolist(), found.top_tokens.tolist()
        ([2], [[2, 1]])
        >>> jnp.exp(found.logprobs).round(3).tolist(), jnp.exp(found.top_logprobs).round(3).tolist()
        ([0.2...], [[0.625, 0.25]])
    """
    check_logits("token_logprobs", logits)
    check_arrays("token_logprobs", tokens=tokens)
    _check_tokens(tokens, logits.shape)
    k = _check_k(k, logits.shape[1])
    arrays = (jnp.asarray(logits), jnp.asarray(tokens))
    run, out = functools.partial(_logprobs_of, k), ("b", "b", "bk", "bk")
    return TokenLogprobs(*over_rows("token_logprobs", run, arrays, ("bv", "b"), out=out))


@functools.partial(jax.jit, static_argnums=0)
def _logprobs_of(k: int, logits: Array, tokens: Array) -> tuple[Array, Array, Array, Array]:
    size = logits.shape[1]
    z = logits.astype(jnp.float32)
    top = lax.stop_gradient(largest(z))
    right = jnp.isfinite(top)
    # The maximum has no gradient of its own, and rows without a distribution have none at all.
    z = jnp.where(right[:, None], z - jnp.where(right, top, 0)[:, None], 0)
    lse = jnp.log(jnp.sum(jnp.exp(z), axis=1))
    given = right & (tokens >= 0) & (tokens < size)
    places = jnp.where(given, tokens, 0)[:, None]
    logit = jnp.take_along_axis(z, places, axis=1)
    ranks = 1 + jnp.sum(z > logit, axis=1, dtype=jnp.int32)
    values, ids = lax.top_k(z, k)
    exists = right[:, None] & (values > -jnp.inf)
    return (
        jnp.where(given, logit[:, 0] - lse, jnp.nan),
        jnp.where(given, ranks, 0),
        jnp.where(exists, ids.astype(jnp.int32), -1),
        jnp.where(right[:, None], values - lse[:, None], jnp.nan),
    )


def _check_tokens(tokens: Any, shape: tuple[Any, ...]) -> None:
    batch, size = shape
    if jnp.dtype(tokens.dtype).name not in ("int32", "int64"):
        raise TypeError(
            f"tokens must be int32 or int64, got tokens.dtype={tokens.dtype}. Use "
            ".astype(jnp.int32)."
        )
    if tokens.shape != (batch,):
        raise ValueError(
            f"tokens must be [B] = [{batch}] for logits [B, V], got tokens.shape={tokens.shape}. "
            "Use logits[:, -1] of a sequence, or reshape both to rows."
        )
    numbers = known(tokens)
    if numbers is not None and np.any(wrong := (numbers < -1) | (numbers >= size)):
        raise ValueError(
            f"tokens must be in [0, V) = [0, {size}) or -1, got {numbers[wrong][0]}. Use -1 for "
            "none."
        )


def _check_k(k: Any, size: int) -> int:
    k = operator.index(k)
    if not 0 <= k <= size:
        raise ValueError(
            f"k must be from 0 to V = {size}, got k={k}. Use 0 for the token's own "
            "log-probability alone."
        )
    return k
