# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import Experts, Groups
from dovetail_models.layers.router import Router, balance


def routed(logits, **options):
    """Weights and choices of a router that is given these logits: its kernel is the identity."""
    experts = Experts(count=len(logits), hidden=1, **options)
    router = Router(len(logits), experts, std=1.0, rngs=nnx.Rngs(0))
    router.kernel.set_value(jnp.eye(len(logits)))
    weights, chosen, scores = router(jnp.asarray(logits, jnp.float32))
    return np.asarray(weights), chosen.tolist(), np.asarray(scores)


LOGITS = np.array([0.3, 2.0, -1.0, 1.0, 0.9, 1.9])


@pytest.mark.thorough
@pytest.mark.parametrize("normalise", [True, False])
def test_softmax_of_all_then_the_best(normalise):
    weights, chosen, scores = routed(LOGITS, top_k=2, normalise=normalise, scale=3.0)
    all_scores = np.exp(LOGITS) / np.exp(LOGITS).sum()
    np.testing.assert_allclose(scores, all_scores, rtol=1e-6)
    assert chosen == [1, 5]
    want = 3.0 * all_scores[[1, 5]] / (all_scores[[1, 5]].sum() if normalise else 1.0)
    np.testing.assert_allclose(weights, want, rtol=1e-6)


@pytest.mark.thorough
def test_a_selection_bias_chooses_and_does_not_weigh():
    experts = Experts(count=3, top_k=1, hidden=1, score="sigmoid", selection_bias=True)
    router = Router(3, experts, std=1.0, rngs=nnx.Rngs(0))
    router.kernel.set_value(jnp.eye(3))
    router.selection_bias.set_value(jnp.array([0.0, 0.0, 5.0]))
    weights, chosen, _ = router(jnp.array([4.0, 1.0, -2.0]))
    assert chosen.tolist() == [2]
    np.testing.assert_allclose(weights, 1.0, rtol=1e-6)
    assert set(nnx.state(router, nnx.Param)) == {"kernel"}


def test_groups_by_their_best_and_by_their_two_best():
    # Three groups of two: the best single expert is in the first, the best pair in the last.
    logits = np.array([2.0, -3.0, 0.1, 0.2, 1.5, 1.4])
    limited = {"top_k": 2, "score": "sigmoid", "normalise": False}
    _, chosen, _ = routed(logits, **limited, groups=Groups(count=3, top_k=1, score="max"))
    assert chosen == [0, 1]
    _, chosen, _ = routed(logits, **limited, groups=Groups(count=3, top_k=1, score="top2"))
    assert chosen == [4, 5]
    _, chosen, _ = routed(logits, **limited)
    assert chosen == [0, 4]


def _by_hand(scores, chosen):
    """2412.19437, eq. 18 to 20, of one sequence in float64: scores [t, E], chosen [t, K]."""
    count, (length, top_k) = scores.shape[1], chosen.shape
    used = np.bincount(chosen.ravel(), minlength=count) * count / (top_k * length)
    share = (scores / scores.sum(-1, keepdims=True)).astype(np.float64).mean(0)
    return (used * share).sum()


def _routes(rows, length):
    scores = np.random.default_rng(0).random((rows, length, 4)).astype(np.float32)
    return scores, np.argsort(-scores, axis=-1)[..., :2].astype(np.int32)


@pytest.mark.thorough
def test_balance_counts_choices_and_leaves_padding_out():
    scores, chosen = _routes(2, 5)
    segments = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], np.int32)
    load, total, count = balance(*map(jnp.asarray, (scores, chosen, segments)))
    kept = chosen[0, :3]
    assert load.tolist() == np.bincount(kept.ravel(), minlength=4).tolist()
    np.testing.assert_allclose(total, _by_hand(scores[0, :3], kept), rtol=1e-6)
    assert count == 1


@pytest.mark.thorough
def test_balance_of_whole_rows_is_the_sum_over_them():
    scores, chosen = _routes(3, 5)
    _, total, count = balance(jnp.asarray(scores), jnp.asarray(chosen), None)
    want = sum(_by_hand(s, c) for s, c in zip(scores, chosen, strict=True))
    np.testing.assert_allclose(total, want, rtol=1e-6)
    assert count == 3


@pytest.mark.thorough
def test_balance_of_packed_documents_is_that_of_the_documents_apart():
    scores, chosen = _routes(2, 9)
    segments = np.array([[1, 1, 2, 2, 2, 2, 3, 0, 0], [0, 7, 7, 7, 1, 1, 1, 1, 1]], np.int32)
    pieces = [(0, 0, 2), (0, 2, 6), (0, 6, 7), (1, 1, 4), (1, 4, 9)]
    _, total, count = balance(*map(jnp.asarray, (scores, chosen, segments)))
    want = sum(_by_hand(scores[b, i:j], chosen[b, i:j]) for b, i, j in pieces)
    np.testing.assert_allclose(total, want, rtol=1e-6)
    assert count == len(pieces)


@pytest.mark.thorough
def test_balance_is_1_where_all_experts_are_used_alike():
    even = jnp.full((1, 4, 4), 0.25)
    turns = jnp.array([[[0, 1], [2, 3], [0, 1], [2, 3]]])
    np.testing.assert_allclose(balance(even, turns, None).total, 1.0, rtol=1e-6)
