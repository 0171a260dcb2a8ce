# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities, ranks and likeliest tokens against float64 NumPy."""

import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from dovetail_kernels.sampling.adjust import adjust_logits
from dovetail_kernels.sampling.api import warp_logits
from dovetail_kernels.sampling.logprobs import token_logprobs


def oracle(logits, tokens, k):
    z = np.asarray(logits, np.float64)
    logps = z - z.max(1, keepdims=True)
    logps = logps - np.log(np.exp(logps).sum(1, keepdims=True))
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]
    chosen = logps[np.arange(len(z)), tokens]
    ranks = 1 + (logps > chosen[:, None]).sum(1)
    return chosen, ranks, order, np.take_along_axis(logps, order, 1)


@pytest.mark.thorough
@pytest.mark.capability("log-probabilities of drawn tokens, ranks and likeliest tokens")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("vocabulary, k", [(1, 1), (37, 0), (37, 37), (5003, 5), (151_936, 20)])
def test_against_float64(vocabulary, k, dtype):
    """bfloat16 has many equal logits: of these the first tokens come first."""
    rng = np.random.default_rng(vocabulary)
    logits = (rng.standard_normal((3, vocabulary)) * 3).astype(jnp.dtype(dtype))
    tokens = rng.integers(0, vocabulary, 3).astype("i4")
    found = token_logprobs(logits, tokens, k=k)
    chosen, ranks, order, top = oracle(logits, tokens, k)
    assert [x.dtype for x in found] == [jnp.float32, jnp.int32, jnp.int32, jnp.float32]
    np.testing.assert_array_equal(found.ranks, ranks)
    np.testing.assert_array_equal(found.top_tokens, order)
    # Logits of up to 15, shifted and summed in float32: 8 roundings of 30.
    atol = 8 * 2**-24 * 30
    np.testing.assert_allclose(found.logprobs, chosen, rtol=0, atol=atol)
    np.testing.assert_allclose(found.top_logprobs, top, rtol=0, atol=atol)


def test_large_logits_do_not_overflow():
    found = token_logprobs(np.array([[3e38, -3e38, 3e38]], "f4"), np.array([0], "i4"), k=1)
    np.testing.assert_allclose(found.logprobs, [-np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(found.top_logprobs, [[-np.log(2)]], rtol=1e-6)


def test_equal_logits_share_a_rank_and_the_first_comes_first():
    found = token_logprobs(np.array([[1.0, 2.0, 2.0, 0.0]], "f4"), np.array([2], "i4"), k=3)
    assert found.ranks.tolist() == [1]
    assert found.top_tokens.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("vocabulary", [5, 5003])
@pytest.mark.parametrize("traced", [False, True])
def test_rows_without_a_number(vocabulary, traced):
    z = np.full((6, vocabulary), -np.inf, "f4")
    z[:, 1], z[:, 3] = np.log(3), 0.0
    z[2, 4], z[3, 0], z[4] = np.nan, np.inf, -np.inf
    tokens = np.array([-1, 2, 1, 1, 1, 3])
    call = lambda z, tokens: token_logprobs(z, tokens, k=3)  # noqa: E731
    found = (jax.jit(call) if traced else call)(z, tokens)
    expected = [np.nan, -np.inf, np.nan, np.nan, np.nan, np.log(0.25)]
    np.testing.assert_allclose(found.logprobs, expected, rtol=1e-6)
    assert found.ranks.tolist() == [0, 3, 0, 0, 0, 2]
    likely, none = [1, 3, -1], [-1, -1, -1]
    assert found.top_tokens.tolist() == [likely, likely, none, none, none, likely]
    row = [np.log(0.75), np.log(0.25), -np.inf]
    np.testing.assert_allclose(found.top_logprobs, [row, row, *[[np.nan] * 3] * 3, row], rtol=1e-6)


def test_traced_tokens_out_of_range_are_as_none():
    found = jax.jit(lambda z, tokens: token_logprobs(z, tokens))(
        np.zeros((2, 3)), jnp.array([3, -2])
    )
    assert np.isnan(found.logprobs).all()
    assert found.ranks.tolist() == [0, 0]


@pytest.mark.thorough
def test_adjusted_and_warped_logits_agree_with_their_distributions():
    z = np.random.default_rng(0).standard_normal((2, 30)).astype("f4")
    allowed, tokens = np.arange(60).reshape(2, 30) % 3 != 0, np.array([1, 2], "i4")
    adjusted = adjust_logits(z, allowed=allowed)
    chosen, _, order, _ = oracle(np.where(allowed, z, -np.inf), tokens, 4)
    found = token_logprobs(adjusted, tokens, k=4)
    np.testing.assert_allclose(found.logprobs, chosen, atol=1e-5)
    np.testing.assert_array_equal(found.top_tokens, order)
    warped = token_logprobs(warp_logits(adjusted, top_k=4), order[:, 0].astype("i4"), k=6)
    np.testing.assert_array_equal(warped.top_tokens[:, :4], order)
    np.testing.assert_array_equal(warped.top_tokens[:, 4:], -1)
    np.testing.assert_allclose(np.exp(warped.top_logprobs).sum(1), 1, rtol=1e-6)


@pytest.mark.thorough
def test_gradient_is_that_of_the_log_probability():
    """And rows without a distribution have none: 0, also for the rows beside them."""
    z = np.random.default_rng(2).standard_normal((3, 7)).astype("f4")
    z[1, 2] = np.nan
    tokens = jnp.array([4, 1, -1])

    def loss(z):
        return jnp.nansum(token_logprobs(z, tokens, k=2).logprobs)

    p = np.exp(z[0].astype(float)) / np.exp(z[0].astype(float)).sum()
    expected = np.stack([np.eye(7)[4] - p, np.zeros(7), np.zeros(7)])
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(z)), expected, atol=1e-6)


@pytest.mark.thorough
def test_vmap_and_x64():
    z = np.random.default_rng(3).standard_normal((2, 3, 20)).astype("f4")
    tokens = np.arange(6).reshape(2, 3).astype("i4")
    many = jax.vmap(lambda z, t: token_logprobs(z, t, k=3))(z, tokens)
    with jax.enable_x64(True):
        whole = token_logprobs(z.reshape(6, 20), tokens.reshape(6).astype("i8"), k=3)
        assert [x.dtype.name for x in whole] == ["float32", "int32", "int32", "float32"]
    for a, b in zip(many, whole, strict=True):
        np.testing.assert_allclose(a.reshape(b.shape), b, atol=1e-6)


Z, T = jnp.zeros((2, 5)), jnp.zeros(2, jnp.int32)
WRONG = [
    (ValueError, (Z, T[:1]), {}, "tokens must be [B] = [2] for logits [B, V], got tokens.shape="
     "(1,)", "Use logits[:, -1]"),
    (ValueError, (Z, T + 5), {}, "tokens must be in [0, V) = [0, 5) or -1, got 5", "Use -1"),
    (ValueError, (Z, T - 2), {}, "tokens must be in [0, V) = [0, 5) or -1, got -2", "Use -1"),
    (ValueError, (Z, T), {"k": 6}, "k must be from 0 to V = 5, got k=6", "Use 0 for the token's"),
    (ValueError, (Z, T), {"k": -1}, "k must be from 0 to V = 5, got k=-1", "Use 0"),
    (TypeError, (Z, T.astype(jnp.uint8)), {}, "tokens must be int32 or int64, got tokens.dtype="
     "uint8", "Use .astype(jnp.int32)"),
    (TypeError, (Z, [0, 0]), {}, "needs tokens as an array, got tokens of type list", "Use jnp."),
    (TypeError, (Z.astype(int), T), {}, "logits must be float32, bfloat16 or float16, got", "Use"),
]  # fmt: skip


def test_a_wrong_call_is_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for kind, arrays, options, what, instead in WRONG:
        with pytest.raises(kind, match=re.escape(what)) as error:
            token_logprobs(*arrays, **options)
        assert instead in str(error.value), what
