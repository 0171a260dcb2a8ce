# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder that values texts: one number after each token, and the one after the whole text.

A batch has all ids of a text but its last as tokens, and all but its first as targets. The last id,
such as the end of the answer, is then a target alone, and no slot of the batch holds the features
after it. A language model does not need them; a value does, and a sequence classifier of
transformers reads just them. So a row of S slots is put together again to its S + 1 ids here.

Rows hold one text each. Packed rows miss the last id of every text but one, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_tune.chunks import position_shards
from dovetail_tune.rows import single_texts
from dovetail_tune.types import Batch, Decoder


class RewardModel(nnx.Module):
    """Values of the tokens and texts of a batch, by a decoder and a head.

    Args:
        decoder: Any decoder. Its own head is not read.
        head: Maps features f32[..., D] to values f32[..., 1] or f32[...]: a module, whose
            parameters are trained with the decoder's, or a function.

    Raises:
        TypeError: `decoder` has no features, or `head` cannot be called.

    Example:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dovetail_tune import RewardModel
        >>> from dovetail_tune.testing import TinyDecoder
        >>> rngs = nnx.Rngs(0)
        >>> model = RewardModel(TinyDecoder(rngs=rngs), nnx.Linear(16, 1, rngs=rngs))
        >>> model(jnp.array([[1, 2, 3]])).shape
        (1, 3)
    """

    def __init__(self, decoder: Any, head: Callable[..., Any]) -> None:
        if not isinstance(decoder, Decoder) or not callable(head):
            raise TypeError(
                f"a reward model needs a decoder with features and a head to call, got "
                f"decoder={type(decoder).__name__}, head={type(head).__name__}; write for example "
                "RewardModel(decoder, nnx.Linear(width, 1, rngs=rngs))"
            )
        self.decoder, self.head = decoder, head

    def __call__(
        self,
        tokens: Int[Array | np.ndarray, "B S"],
        *,
        positions: Int[Array | np.ndarray, "B S"] | None = None,
        segment_ids: Int[Array | np.ndarray, "B S"] | None = None,
        attention: Callable[..., Any] | None = None,
    ) -> Float[Array, "B S"]:
        """Returns the value after each token in float32.

        Args:
            tokens: i32[B, S].
            positions: i32[B, S]. Default: the decoder's.
            segment_ids: i32[B, S], 0 for padding. Default: one segment.
            attention: The decoder's attention. Default: its own.

        Raises:
            ValueError: The head returns another shape.
        """
        given = {"positions": positions, "segment_ids": segment_ids, "attention": attention}
        options = {name: x for name, x in given.items() if x is not None}
        x = self.decoder.features(jnp.asarray(tokens), **options)[0]
        values = self.head(x)
        if values.shape not in (x.shape[:2], (*x.shape[:2], 1)):
            raise ValueError(
                f"head must return one value for each token, [{x.shape[0]}, {x.shape[1]}, 1], got "
                f"head(features)={values.dtype}{list(values.shape)}; write for example "
                f"nnx.Linear({x.shape[2]}, 1, rngs=rngs)"
            )
        return values.reshape(x.shape[:2]).astype(jnp.float32)

    def after_targets(
        self, batch: Batch, *, attention: Callable[..., Any] | None = None
    ) -> Float[Array, "B S"]:
        """Returns the value after each target of a batch in float32; 0 on padding.

        The value after a text is that after its last target. A packed row has NaN, or is refused
        where the ids are concrete.

        Args:
            batch: tokens and targets i32[B, S]; optionally segment_ids i32[B, S], 1 for the text
                and then 0 for padding. Without them a text fills its row.
            attention: The decoder's attention. Default: its own.

        Raises:
            ValueError: A field is missing, or a row is packed: names the row.
        """
        text, single = single_texts(batch)
        # A target of padding may be anything.
        targets = jnp.where(text, jnp.asarray(batch["targets"]), 0)
        tokens = jnp.concatenate([jnp.asarray(batch["tokens"])[:, :1], targets], axis=1)
        inside = jnp.concatenate([text[:, :1], text], axis=1).astype(jnp.int32)
        # Devices that share positions hold equally many of them.
        length = tokens.shape[1]
        more = (0, 0), (0, -length % position_shards())
        tokens, inside = jnp.pad(tokens, more), jnp.pad(inside, more)
        # A row has one id more than slots: on padding it may be past a model's last position, where
        # learned vectors are NaN, and attention adds 0 times NaN to all.
        positions = inside * jnp.arange(tokens.shape[1])[None]
        where = {"positions": positions, "segment_ids": inside, "attention": attention}
        values = self(tokens, **where)[:, 1:length]
        return jnp.where(single[:, None], jnp.where(text, values, 0.0), jnp.nan)

    def scores(
        self, batch: Batch, *, attention: Callable[..., Any] | None = None
    ) -> Float[Array, " B"]:
        """Returns the value after the last target of each row in float32; 0 for an empty row.

        Args:
            batch: As in `after_targets`.
            attention: The decoder's attention. Default: its own.

        Raises:
            ValueError: As in `after_targets`.
        """
        values = self.after_targets(batch, attention=attention)
        last = jnp.maximum(single_texts(batch)[0].sum(axis=1) - 1, 0)
        return jnp.take_along_axis(values, last[:, None], axis=1)[:, 0]
