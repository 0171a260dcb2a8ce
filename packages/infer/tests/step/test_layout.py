# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Discovery of the cache, and refusals of decoders without a paged form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_infer.step.layout import discover
from dovetail_infer.testing import TinyDecoder


def _model(kind=TinyDecoder, **options):
    return kind(vocab_size=51, embed=24, depth=3, rngs=nnx.Rngs(0), **options)


def test_layers_of_equal_windows_share_a_group():
    layout = discover(_model(windows=(7, None)), max_length=32)
    assert layout.windows == (7, None)
    assert [layer.group for layer in layout.layers] == [0, 1, 0]
    assert layout.vocab_size == 51
    assert {layer.page_shape(4) for layer in layout.layers} == {(2, 4, 2, 6)}
    # Two layers of keys and values: 2 entries, 2 heads, 6 numbers of 4 bytes.
    assert layout.token_bytes(0) == 2 * 2 * 2 * 6 * 4
    assert layout.token_bytes(1) == 2 * 2 * 6 * 4


def test_latent_layers_store_keys_alone():
    layer = discover(_model(latent=True), max_length=32).layers[0]
    assert layer.value_width == 3
    assert layer.page_shape(4) == (1, 4, 1, 6)
    assert layer.token_bytes == 6 * 4


@pytest.mark.thorough
def test_pages_of_bfloat16_keys_are_wider_on_an_old_cpu():
    model = _model(dtype=jnp.bfloat16)
    old = jax.default_backend() == "cpu" and jax.__version_info__ < (0, 12)
    want = np.dtype(np.float32 if old else jnp.bfloat16)
    assert discover(model, max_length=32).layers[0].dtype == want
    assert discover(model, max_length=32, kv_dtype=jnp.bfloat16).layers[0].dtype == jnp.bfloat16


def test_experts_are_found_where_they_are_wanted():
    model = _model(experts=5)
    assert discover(model, max_length=32).experts is None
    assert discover(model, max_length=32, record_experts=True).experts == (3, 2)


def test_an_abstract_model_is_enough():
    model = nnx.eval_shape(lambda: _model(windows=(7, None)))
    assert discover(model, max_length=32) == discover(_model(windows=(7, None)), max_length=32)


class _Own(TinyDecoder):
    """Its second layer has an attention of its own."""

    def features(self, tokens, *, attention=None, kv=None, **options):
        def some(q, k, v, *, kv, **more):
            return (q if kv.layer == 1 else attention(q, k, v, kv=kv, **more)[0]), kv

        return super().features(tokens, attention=some, kv=kv, **options)


class _Twice(TinyDecoder):
    def features(self, tokens, *, attention=None, kv=None, **options):
        def twice(*args, **more):
            attention(*args, **more)
            return attention(*args, **more)

        return super().features(tokens, attention=twice, kv=kv, **options)


class _Short(TinyDecoder):
    def features(self, tokens, *, positions, **options):
        if np.asarray(positions).max() >= 16:
            raise ValueError("position 16 has no vector")
        return super().features(tokens, positions=positions, **options)


class _WideValues(TinyDecoder):
    def features(self, tokens, *, attention=None, **options):
        def wide(q, k, v, **more):
            out, kv = attention(q[..., :-1], k[..., :-1], v, **more)
            return out, kv

        return super().features(tokens, attention=wide, **options)


class _NoAttention(TinyDecoder):
    def features(self, tokens, *, positions, segment_ids):
        return super().features(tokens, positions=positions, segment_ids=segment_ids)


@pytest.mark.parametrize(
    "kind, error, message",
    [
        (_Own, ValueError, r"call the given attention once.*got 0 calls of layer 1.*paged form"),
        (_Twice, ValueError, r"once.*got 2 calls of layer 0.*paged form"),
        (_Short, ValueError, r"max_length must.*got max_length=32.*smaller max_length.*no vector"),
        (_WideValues, ValueError, r"g <= h.*k.shape=\(1, 8, 2, 5\).*layer 0.*pad k and q"),
        (_NoAttention, TypeError, r"must take.*without attention, kv.*Add them"),
    ],
)
def test_refusals_say_what_to_do(kind, error, message):
    with pytest.raises(error, match=message):
        discover(_model(kind), max_length=32)
