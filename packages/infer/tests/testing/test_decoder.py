# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tiny decoder against its float64 oracle, which loops over queries, heads and experts."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_infer import Decoder
from dovetail_infer.testing import TinyDecoder, whole_logits

SIZES = {"vocab_size": 51, "embed": 24, "depth": 3, "heads": 4, "kv_heads": 2}
OPTIONS = {
    "plain": {},
    "windows": {"windows": (None, 5)},
    "sinks": {"sinks": True, "soft_cap": 2.0},
    "latent": {"latent": True},
    "experts": {"experts": 5},
}


@pytest.mark.thorough
@pytest.mark.parametrize("options", OPTIONS)
def test_logits_equal_the_oracle(options):
    model = TinyDecoder(**SIZES, **OPTIONS[options], rngs=nnx.Rngs(1))
    ids = np.random.default_rng(0).integers(0, 51, 17)
    want = whole_logits(model, ids)
    # Sums of at most 48 products of 6e-8, through three layers.
    np.testing.assert_allclose(model(jnp.asarray(ids)[None])[0], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_each_option_changes_the_oracle(options):
    ids = np.random.default_rng(0).integers(0, 51, 17)
    plain, other = (
        whole_logits(TinyDecoder(**SIZES, **given, rngs=nnx.Rngs(1)), ids)
        for given in ({}, OPTIONS[options])
    )
    assert np.array_equal(plain, other) == (options == "plain")


@pytest.mark.thorough
def test_segments_do_not_see_each_other():
    model = TinyDecoder(**SIZES, rngs=nnx.Rngs(1))
    ids = np.random.default_rng(0).integers(0, 51, 9)
    packed = model(
        jnp.asarray(ids)[None],
        positions=np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]]),
        segment_ids=jnp.array([[1] * 4 + [2] * 5]),
    )
    np.testing.assert_allclose(packed[0, 4:], whole_logits(model, ids[4:]), rtol=0, atol=1e-5)


def test_it_is_a_decoder():
    assert isinstance(TinyDecoder(rngs=nnx.Rngs(0)), Decoder)
