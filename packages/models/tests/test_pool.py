# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models import pool

# Right padding, left padding, none, padding on both sides.
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0]], np.int32)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal((4, 5, 7)).astype(np.float32)


def expected(x, kind):
    rows = [row[mask == 1].astype(np.float64) for row, mask in zip(x, MASK, strict=True)]
    choose = {"mean": lambda r: r.mean(0), "first": lambda r: r[0], "last": lambda r: r[-1]}
    return np.stack([choose[kind](row) for row in rows])


@pytest.mark.parametrize("kind", ["mean", "first", "last"])
@pytest.mark.parametrize("dtype", [np.int32, bool])
def test_the_tokens_that_count_are_pooled(x, kind, dtype):
    got = pool(jnp.asarray(x), mask=MASK.astype(dtype), kind=kind)
    # A sum of five float32 terms.
    np.testing.assert_allclose(got, expected(x, kind), rtol=1e-6, atol=1e-6)


def test_normalised_vectors_have_length_one(x):
    want = expected(x, "mean")
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    got = pool(jnp.asarray(x), mask=MASK, kind="mean", normalize=True)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.thorough
def test_sums_are_float32_and_the_result_has_the_dtype_of_the_features():
    # In bfloat16 the running sum would stop at 256.
    x = jnp.ones((1, 1000, 3), jnp.bfloat16)
    got = pool(x, mask=np.ones((1, 1000), np.int32), kind="mean")
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.astype(jnp.float32), 1)


@pytest.mark.parametrize("kind", ["mean", "first", "last"])
def test_a_row_without_tokens_is_refused_and_gives_zeros_under_jit(x, kind):
    mask = MASK.copy()
    mask[2] = 0
    with pytest.raises(ValueError, match="Every row must have a token") as error:
        pool(jnp.asarray(x), mask=mask, kind=kind)
    assert "rows=[2]" in str(error.value)
    assert "Leave those rows out" in str(error.value)
    got = jax.jit(lambda x, m: pool(x, mask=m, kind=kind, normalize=True))(x, mask)
    np.testing.assert_array_equal(got[2], 0)
    assert np.isfinite(got).all()


def test_an_unknown_kind_is_refused(x):
    # Around beartype, which would refuse it first here and is not there outside tests.
    plain = pool.__wrapped__
    with pytest.raises(ValueError, match="kind must be") as error:
        plain(jnp.asarray(x), mask=MASK, kind="max")
    assert "kind='max'" in str(error.value)
    assert "Pass the one" in str(error.value)
