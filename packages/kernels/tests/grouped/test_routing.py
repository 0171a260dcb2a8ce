# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from dovetail_kernels.grouped.routing import ExpertGroups, route_tokens
from dovetail_kernels.testing import routing as suite

LOGITS = jnp.asarray(np.random.default_rng(0).standard_normal((2, 5, 8)), jnp.float32)


@pytest.mark.thorough
def test_every_case_of_the_suite():
    suite.check_route_tokens(route_tokens, supports=suite.FEATURES)


@pytest.mark.thorough
def test_float64():
    with jax.enable_x64(True):
        logits = np.random.default_rng(1).standard_normal((5, 8)) * 3
        weights, experts = route_tokens(jnp.asarray(logits), k=3, score="sigmoid")
        assert weights.dtype == jnp.float64
        assert experts.dtype == jnp.int32
        expected = suite.oracle(logits, np.zeros((5, 3)), k=3, score="sigmoid")
        np.testing.assert_array_equal(experts, expected[0])
        np.testing.assert_allclose(weights, expected[1], rtol=50 * np.finfo(float).eps)


@pytest.mark.thorough
def test_any_token_axes_vmap_and_jit():
    weights, experts = route_tokens(LOGITS, k=3)
    assert weights.shape == experts.shape == (2, 5, 3)
    flat = route_tokens(LOGITS.reshape(10, 8), k=3)
    mapped = jax.jit(jax.vmap(lambda x: route_tokens(x, k=3)))(LOGITS)
    np.testing.assert_array_equal(experts.reshape(10, 3), flat[1])
    np.testing.assert_array_equal(experts, mapped[1])
    # The same formula, fused in another way: a few units in the last place.
    np.testing.assert_allclose(weights.reshape(10, 3), flat[0], rtol=1e-6)
    np.testing.assert_allclose(weights, mapped[0], rtol=1e-6)
    assert route_tokens(LOGITS[0, 0], k=2)[0].shape == (2,)


@pytest.mark.thorough
def test_scores_that_float32_rounds_to_one_keep_their_order():
    logits = jnp.asarray([[30.0, 50.0, 40.0, 20.0]])
    weights, experts = route_tokens(logits, k=2, score="sigmoid")
    assert experts.tolist() == [[1, 2]]
    assert weights.tolist() == [[0.5, 0.5]]
    assert route_tokens(jnp.asarray([[-0.0, 0.0, -1.0]]), k=1)[1].item() == 0


def test_a_softmax_over_the_chosen_logits_alone():
    # gpt-oss takes the softmax after the choice.
    weights, experts = route_tokens(LOGITS, k=3)
    chosen = np.take_along_axis(np.asarray(LOGITS, np.float64), np.asarray(experts), axis=-1)
    expected = np.exp(chosen) / np.exp(chosen).sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.thorough
def test_the_bias_has_no_gradient_and_only_chooses():
    bias = jnp.asarray(np.linspace(-1, 1, 8), jnp.float32)
    grad = jax.grad(lambda b: route_tokens(LOGITS, k=3, bias=b, normalise=False)[0].sum())(bias)
    np.testing.assert_array_equal(grad, np.zeros(8))
    pushed = jnp.zeros(8).at[6].set(100.0)
    weights, experts = route_tokens(LOGITS, k=1, bias=pushed, normalise=False)
    np.testing.assert_array_equal(experts, np.full((2, 5, 1), 6))
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    np.testing.assert_allclose(weights[..., 0], softmax[..., 6], rtol=1e-6)


@pytest.mark.thorough
def test_a_negative_bias_cannot_lead_out_of_the_kept_groups():
    # Experts outside are worth less than any inside, also than merits below 0.
    groups, bias = ExpertGroups(count=4, k=1), jnp.full(8, -5.0)
    experts = np.asarray(route_tokens(LOGITS, k=2, score="sigmoid", bias=bias, groups=groups)[1])
    assert (experts[..., 0] // 2 == experts[..., 1] // 2).all()


@pytest.fixture(autouse=True)
def _own_messages(monkeypatch, request):
    if "wrong" in request.node.name:
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"k": 0}, ("1 <= k", "8 of E=8", "k=0", "smaller k")),
        ({"k": 9}, ("1 <= k", "8 of E=8", "k=9")),
        ({"k": 3, "groups": ExpertGroups(count=4, k=1)}, ("2 of E=8", "k=3", "more groups")),
        ({"k": 1, "groups": ExpertGroups(count=3, k=1)}, ("equal size", "count=3", "divides E")),
        ({"k": 1, "groups": ExpertGroups(count=0, k=1)}, ("equal size", "count=0", "divides E")),
        ({"k": 1, "groups": ExpertGroups(count=4, k=5)}, ("groups.k <= groups.count", "k=5")),
        ({"k": 1, "groups": ExpertGroups(count=4, k=0)}, ("1 <= groups.k", "k=0")),
        ({"k": 1, "groups": ExpertGroups(count=8, k=1)}, ("at least two experts", "score='max'")),
        (
            {"k": 1, "groups": SimpleNamespace(count=4, k=1, score="mean")},
            ("groups.score 'max', or 'top2'", "score='mean'", "Use score='max'"),
        ),
        ({"k": 1, "score": "tanh"}, ("'softmax' or 'sigmoid'", "score='tanh'", "Use 'softmax'")),
        ({"k": 1, "bias": jnp.zeros(7)}, ("bias [E]", "(7,), E=8", "one number per expert")),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(ValueError, match=r"\.") as error:
        route_tokens(LOGITS, **options)
    assert [word for word in words if word not in str(error.value)] == []


def test_wrong_logits():
    with pytest.raises(ValueError, match=r"needs logits \[..., E\].*logits.shape=\(\).*Give one"):
        route_tokens(jnp.float32(1), k=1)
