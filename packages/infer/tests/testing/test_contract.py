# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract check accepts right decoders, and each kind of wrong one fails."""

import jax.numpy as jnp
import pytest
from flax import nnx

from dovetail_infer.testing import TinyDecoder, check_decoder

SIZES = {"vocab_size": 51, "embed": 24, "depth": 2}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{}, {"windows": (None, 5)}, {"latent": True}, {"experts": 5}, {"sinks": True}]
)
def test_right_decoders_pass(options):
    check_decoder(TinyDecoder(**SIZES, **options, rngs=nnx.Rngs(0)))


class _IndexedPositions(TinyDecoder):
    def features(self, tokens, *, positions=None, **options):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return super().features(tokens, positions=positions, **options)


class _MeanOfRows(TinyDecoder):
    def features(self, tokens, **options):
        x, kv = super().features(tokens, **options)
        return x + x.mean(axis=1, keepdims=True), kv


class _HalfLogits(TinyDecoder):
    def head(self, x):
        return super().head(x).astype(jnp.float16)


@pytest.mark.parametrize(
    "kind, message",
    [
        (_IndexedPositions, "logits of chunks of .5, 1, 1, 6."),
        (_MeanOfRows, "logits of chunks"),
        (_HalfLogits, "head must return float32 logits, got float16"),
    ],
)
def test_wrong_decoders_fail(kind, message):
    with pytest.raises(AssertionError, match=message):
        check_decoder(kind(**SIZES, rngs=nnx.Rngs(0)))
