# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_tune import losses
from dovetail_tune.losses.contrastive import distances, similarity, unit

# float32 sums of at most 13 products, of scores divided by 0.3.
CLOSE = {"rtol": 3e-6, "atol": 3e-6}


def _vectors(*shape, seed=0, scale=0.5):
    return np.random.default_rng(seed).normal(size=shape, scale=scale).astype(np.float32)


def _nce(queries, keys, positive, *, temperature, symmetric=False, ignore=None):
    """Query by query, key by key, in float64."""
    scores = np.float64(queries) @ np.float64(keys).T / temperature
    count, total = scores.shape
    ignore = np.zeros((count, total), bool) if ignore is None else ignore
    values = np.zeros(count)
    for i in range(count):
        own = positive[i]
        row = [scores[i, j] for j in range(total) if j == own or not ignore[i, j]]
        values[i] = np.log(np.exp(row).sum()) - scores[i, own]
        if symmetric:
            column = [scores[j, own] for j in range(count) if j == i or not ignore[j, own]]
            values[i] = (values[i] + np.log(np.exp(column).sum()) - scores[i, own]) / 2
    return values


def _differences(function, x, step=1e-6):
    """The gradient of the sum of a float64 function by central differences."""
    x = np.float64(x)
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[i] += sign * step
            ends.append(function(moved).sum())
        gradient[i] = (ends[0] - ends[1]) / (2 * step)
    return gradient


CASES = {
    "in the batch": (5, 5, None, False, False),
    "more keys": (5, 11, None, False, False),
    "given": (5, 7, [6, 0, 3, 3, 2], False, False),
    "ignored": (5, 9, None, False, True),
    "symmetric": (5, 11, None, True, False),
    "symmetric, given and ignored": (6, 7, [6, 0, 3, 3, 2, 1], True, True),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_info_nce_equals_float64(case):
    count, total, positive, symmetric, some = CASES[case]
    queries, keys = _vectors(count, 13), _vectors(total, 13, seed=1)
    ignore = np.random.default_rng(2).random((count, total)) < 0.4 if some else None
    if ignore is not None:
        ignore[1, 1 if positive is None else positive[1]] = True  # the positive stays
    own = np.arange(count) if positive is None else np.array(positive)
    given = None if positive is None else own

    def oracle(queries):
        return _nce(queries, keys, own, temperature=0.3, symmetric=symmetric, ignore=ignore)

    def value(queries):
        return losses.info_nce(
            queries, keys, given, temperature=0.3, symmetric=symmetric, ignore=ignore
        )

    np.testing.assert_allclose(value(queries), oracle(queries), **CLOSE)
    gradient = jax.grad(lambda x: value(x).sum())(queries)
    # As CLOSE, with the error 1e-10 of the differences.
    np.testing.assert_allclose(gradient, _differences(oracle, queries), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_gradients_of_keys_are_those_of_float64():
    queries, keys = _vectors(4, 5), _vectors(6, 5, seed=1)

    def oracle(keys):
        return _nce(queries, keys, np.arange(4), temperature=0.3, symmetric=True)

    gradient = jax.grad(
        lambda keys: losses.info_nce(queries, keys, temperature=0.3, symmetric=True).sum()
    )(keys)
    np.testing.assert_allclose(gradient, _differences(oracle, keys), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_identical_vectors_cost_the_logarithm_of_their_number():
    x = np.repeat(_vectors(1, 4), 7, axis=0)
    # Nothing tells the keys apart: 1807.03748, section 2.3, the bound log N.
    np.testing.assert_allclose(losses.info_nce(x, x, temperature=0.05), np.log(7), rtol=1e-6)


@pytest.mark.thorough
def test_a_query_without_negatives_costs_nothing():
    x, y = _vectors(3, 4), _vectors(3, 4, seed=1)
    ignore = np.zeros((3, 3), bool)
    ignore[1] = True
    values = np.asarray(losses.info_nce(x, y, temperature=0.1, ignore=ignore))
    assert values[1] == 0
    assert (values[[0, 2]] > 0).all()
    gradient = jax.grad(
        lambda x: losses.info_nce(x, y, temperature=0.1, ignore=ignore)[1],
    )(x)
    np.testing.assert_array_equal(gradient, np.zeros_like(x))


@pytest.mark.thorough
def test_far_scores_are_finite():
    x = 100 * _vectors(4, 8)
    value, gradient = jax.value_and_grad(
        lambda x: losses.info_nce(x, -x, temperature=1e-3, symmetric=True).sum()
    )(x)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.thorough
def test_bfloat16_vectors_are_compared_in_float32():
    x, y = jnp.asarray(_vectors(4, 8), jnp.bfloat16), jnp.asarray(_vectors(6, 8), jnp.bfloat16)
    values = losses.info_nce(x, y, temperature=0.3)
    assert values.dtype == jnp.float32
    wide = [np.asarray(v, np.float64) for v in (x, y)]
    np.testing.assert_allclose(values, _nce(*wide, np.arange(4), temperature=0.3), **CLOSE)


@pytest.mark.parametrize("own", [-1, 6])
def test_a_traced_positive_outside_the_keys_is_nan(own):
    x, y = _vectors(3, 4), _vectors(6, 4, seed=1)
    values = jax.jit(lambda p: losses.info_nce(x, y, p, temperature=0.3))(jnp.array([2, own, 0]))
    assert np.isnan(values).tolist() == [False, True, False]


def _distance(a, b, kind):
    a, b = np.float64(a), np.float64(b)
    if kind == "cosine":
        norms = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
        return 1 - (a * b).sum(-1) / norms
    squares = ((a - b) ** 2).sum(-1)
    return squares if kind == "squared" else np.sqrt(squares)


@pytest.mark.parametrize("kind", ["euclidean", "squared", "cosine"])
def test_triplets_equal_float64(kind):
    anchor, positive, negative = (_vectors(17, 5, seed=i) for i in range(3))
    margin = 0.4

    def oracle(anchor):
        near, far = _distance(anchor, positive, kind), _distance(anchor, negative, kind)
        return np.maximum(near - far + margin, 0)

    def value(anchor):
        return losses.triplet(anchor, positive, negative, margin=margin, distance=kind)

    np.testing.assert_allclose(value(anchor), oracle(anchor), **CLOSE)
    assert 0 < (oracle(anchor) == 0).sum() < 17
    gradient = jax.grad(lambda x: value(x).sum())(anchor)
    np.testing.assert_allclose(gradient, _differences(oracle, anchor), rtol=1e-5, atol=1e-5)


def test_triplets_are_euclidean_by_default():
    x = [_vectors(3, 5, seed=i) for i in range(3)]
    expected = losses.triplet(*x, margin=0.3, distance="euclidean")
    np.testing.assert_array_equal(losses.triplet(*x, margin=0.3), expected)


@pytest.mark.parametrize("kind", ["euclidean", "squared", "cosine"])
def test_equal_and_zero_vectors_have_finite_gradients(kind):
    x = np.stack([np.zeros(4), np.full(4, 0.5)]).astype(np.float32)
    gradient = jax.grad(lambda x: distances(x, jnp.asarray(x), kind=kind).sum())(x)
    np.testing.assert_allclose(gradient, np.zeros_like(x), atol=1e-6)
    np.testing.assert_array_equal(jax.grad(lambda x: unit(x)[0].sum())(x)[0], np.zeros(4))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["euclidean", "squared", "cosine"])
@pytest.mark.parametrize("some", [False, True])
def test_the_hardest_are_those_of_all_distances(kind, some):
    rng = np.random.default_rng(3)
    x, classes = _vectors(23, 5, seed=4), rng.integers(0, 6, 23)
    classes[5] = 99  # alone
    where = rng.random(23) < 0.7 if some else None
    used = np.ones(23, bool) if where is None else where
    found = losses.hardest(x, classes, distance=kind, where=where)
    for i in range(23):
        far = _distance(x[i][None], x, kind)
        same = [j for j in range(23) if j != i and classes[j] == classes[i] and used[i] * used[j]]
        other = [j for j in range(23) if classes[j] != classes[i] and used[i] and used[j]]
        assert bool(found.exists[i]) == bool(same and other)
        if found.exists[i]:
            assert found.positive[i] == max(same, key=far.__getitem__)
            assert found.negative[i] == min(other, key=far.__getitem__)
    assert not found.exists[5]


def test_rows_of_one_class_have_no_negatives():
    found = losses.hardest(_vectors(4, 3), np.zeros(4, np.int32))
    assert found.exists.tolist() == [False] * 4


def test_products_have_full_precision():
    text = jax.jit(similarity).lower(_vectors(2, 3), _vectors(4, 3)).as_text()
    assert "precision = [HIGHEST, HIGHEST]" in text


X = _vectors(3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: losses.info_nce(X, X, temperature=0.0),
            r"temperature must be above 0, got temperature=0.0; pass for example 0.05",
        ),
        (
            lambda: losses.info_nce(X, X[:2], temperature=0.1),
            r"must have a key, got 3 queries and 2 keys; pass keys with",
        ),
        (
            lambda: losses.info_nce(X, X[:2], np.array([0, 2, 1]), temperature=0.1),
            r"indices of 2 keys, got positive\[1\]=2; pass numbers from 0 to 1",
        ),
        (
            lambda: losses.info_nce(X, X, np.array([0, 1, -1]), temperature=0.1),
            r"indices of 3 keys, got positive\[2\]=-1; pass numbers from 0 to 2",
        ),
        (
            lambda: losses.triplet(X, X, X, margin=0.0),
            r"margin must be above 0, .*got margin=0.0; pass for example 0.2",
        ),
    ],
)
def test_what_is_out_of_range_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("call", [losses.hardest, losses.triplet])
def test_unknown_distances_are_refused(call):
    arguments = (X, np.arange(3)) if call is losses.hardest else (X, X, X)
    options = {} if call is losses.hardest else {"margin": 1.0}
    with pytest.raises(
        ValueError, match=r"euclidean, squared, cosine, got distance='manhattan'; pass distance='eu"
    ):
        call(*arguments, distance="manhattan", **options)
