# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities and entropies of a batch's targets, without all of its logits.

Logits are the largest array of a language model's step. Here they exist for one chunk of positions
at a time, or never, with `logprobs=dovetail_kernels.linear_logprobs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_tune.chunks import map_positions
from dovetail_tune.types import Batch, Logprobs, TokenLogps

CHUNK = 1024


def token_logps(
    model: Any,
    batch: Batch,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    logprobs: Logprobs | None = None,
    attention: Callable[..., Any] | None = None,
    chunk: int = CHUNK,
) -> TokenLogps:
    """Returns log softmax(logits / temperature)[target] of each token of a batch.

    Tokens with mask 0 have 0 and no gradient, whatever their features hold. A target outside the
    vocabulary that counts has NaN.

    Args:
        model: A decoder.
        batch: tokens, targets i32[B, S] and mask f32[B, S]; optionally positions and segment_ids
            i32[B, S].
        temperature: Divides the logits; above 0.
        entropy: Also compute the entropy of each distribution.
        logprobs: Computes both from features and head weight. Default: by the model's `head`, chunk
            by chunk.
        attention: The model's attention. Default: its own.
        chunk: Positions per device for which the logits exist at once, without `logprobs`.

    Returns:
        Log-probabilities, and entropies or None, f32[B, S] in nats. Both have gradients.

    Raises:
        ValueError: A field is missing, or an option is out of range.
        TypeError: The model has no `features`.

    Example:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dovetail_tune import token_logps
        >>> from dovetail_tune.testing import TinyDecoder
        >>> tokens = jnp.array([[1, 2, 3]])
        >>> batch = {"tokens": tokens, "targets": tokens + 1, "mask": jnp.array([[0, 1, 1]])}
        >>> token_logps(TinyDecoder(rngs=nnx.Rngs(0)), batch).logprob.shape
        (1, 3)
    """
    if not temperature > 0 or chunk < 1:
        raise ValueError(
            f"temperature must be above 0 and chunk at least 1, got temperature={temperature}, "
            f"chunk={chunk}; leave them out for 1.0 and {CHUNK}"
        )
    x = features(model, batch, attention=attention)
    mask = jnp.asarray(batch["mask"]) > 0
    targets = jnp.where(mask, jnp.asarray(batch["targets"]), 0)
    if logprobs is not None:
        return _headless(
            model, x, targets, mask, logprobs, temperature=temperature, entropy=entropy
        )

    def scored(x: Array, targets: Array, mask: Array) -> TokenLogps:
        logits = model.head(jnp.where(mask[..., None], x, 0)).astype(jnp.float32) / temperature
        return of_logits(logits, targets, mask, entropy=entropy)

    return map_positions(scored, (x, targets, mask), chunk=chunk)


def features(
    model: Any, batch: Batch, *, attention: Callable[..., Any] | None = None
) -> Float[Array, "B S D"]:
    """Returns the features of a batch's tokens before the head.

    Args:
        model: A decoder.
        batch: tokens, and optionally positions and segment_ids, i32[B, S].
        attention: The model's attention. Default: its own.
    """
    options = decoder_options(model, batch, attention=attention)
    return model.features(jnp.asarray(batch["tokens"]), **options)[0]


def decoder_options(
    model: Any, batch: Batch, *, attention: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Returns the options of `model.features` for a batch, after a check of both.

    Args:
        model: A decoder.
        batch: Arrays by name.
        attention: The model's attention. Default: its own.
    """
    missing = {"tokens", "targets", "mask"} - set(batch)
    if missing:
        raise ValueError(
            f"a batch must have tokens, targets and mask, got {sorted(batch)}; "
            f"add {', '.join(sorted(missing))}"
        )
    if not callable(getattr(model, "features", None)):
        raise TypeError(
            f"a loss of tokens needs a decoder with features and head, got {type(model).__name__}; "
            f"pass a decoder such as one of dovetail_models, or Twin with reference=Frozen()"
        )
    options = {name: batch[name] for name in ("positions", "segment_ids") if name in batch}
    if attention is not None:
        options["attention"] = attention
    return options


def of_logits(
    logits: Float[Array, "B s V"], targets: Int[Array, "B s"], mask: Array, *, entropy: bool
) -> TokenLogps:
    """Returns log-probabilities and entropies from logits; 0 where `mask` is False.

    Args:
        logits: f32[B, s, V].
        targets: i32[B, s]. One outside the vocabulary has NaN.
        mask: bool[B, s].
        entropy: Also compute the entropies.
    """
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    # take_along_axis counts negative indices from the end: move them past it, where it gives NaN.
    labels = jnp.where(targets < 0, logits.shape[-1], targets)
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1, mode="fill")[..., 0]
    logprob = jnp.where(mask, picked - normalizer, 0.0)
    if not entropy:
        return TokenLogps(logprob, None)
    # 0 log 0 = 0, and its gradient is 0: logits may be -inf.
    p = jnp.exp(logits - normalizer[..., None])
    finite = jnp.where(p > 0, logits, 0.0)
    return TokenLogps(logprob, jnp.where(mask, normalizer - (p * finite).sum(-1), 0.0))


def _headless(
    model: Any,
    x: Float[Array, "B S D"],
    targets: Int[Array, "B S"],
    mask: Array,
    logprobs: Logprobs,
    *,
    temperature: float,
    entropy: bool,
) -> TokenLogps:
    weight, soft_cap = model.head_weight()
    with jax.numpy_dtype_promotion("standard"):  # as the layer would promote them
        dtype = jnp.promote_types(x.dtype, weight.dtype)
    scored = logprobs(
        x.reshape(-1, x.shape[-1]).astype(dtype),
        weight.astype(dtype),
        targets.reshape(-1),
        where=mask.reshape(-1),
        soft_cap=soft_cap,
        temperature=temperature,
    )
    shaped = (jnp.asarray(y, jnp.float32).reshape(mask.shape) for y in scored)
    logprob, entropies = shaped
    return TokenLogps(logprob, entropies if entropy else None)
