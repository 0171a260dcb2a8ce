# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of 8 bits."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.quantized.rows import accumulator, eight_bits, restored, rounded

X = (np.random.default_rng(0).standard_normal((6, 33)) * 50).astype(np.float32)


@pytest.mark.thorough
def test_a_row_is_rounded_by_its_largest() -> None:
    q, step = eight_bits(jnp.asarray(X))
    expected = abs(X).max(1, keepdims=True) * np.float32(1 / 127)
    np.testing.assert_array_equal(step, expected)
    np.testing.assert_array_equal(q, np.round(X / expected))
    assert abs(np.asarray(q)).max(1).tolist() == [127] * 6


def test_half_goes_to_even() -> None:
    q, _ = eight_bits(jnp.asarray([[127.0, 0.5, 1.5, -2.5]]))
    assert np.asarray(q).tolist() == [[127, 0, 2, -2]]


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 64])
def test_a_nan_among_many_values_is_seen(rows) -> None:
    """XLA's parallel maximum on CPUs drops NaN; small arrays are reduced without it."""
    x = jnp.ones((rows, 8192)).at[0, 5000].set(jnp.nan)
    step = eight_bits(x)[1]
    assert not np.isfinite(step[0]).any()
    np.testing.assert_array_equal(step[1:], np.float32(1 / 127))


@pytest.mark.thorough
def test_rows_that_are_zero_tiny_or_not_finite() -> None:
    x = jnp.asarray([[0.0, 0.0], [1e-39, 0.0], [jnp.inf, 1.0], [jnp.nan, 1.0]])
    q, step = eight_bits(x)
    assert np.asarray(step)[:2].tolist() == [[0], [0]]
    assert np.asarray(q)[:2].tolist() == [[0, 0], [0, 0]]
    assert not np.isfinite(step[2:]).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rounded_rows_are_restored(dtype: str) -> None:
    x = jnp.asarray(X).astype(dtype)
    rows, step = rounded(x, activations="int8")
    assert rows.dtype == np.float32
    back = restored(rows, step, x.dtype)
    assert back.dtype == x.dtype
    wide = np.asarray(x, np.float64)
    # Half a step, and the rounding of the dtype.
    error = abs(wide).max(1, keepdims=True) * (0.5 / 127 + float(jnp.finfo(dtype).eps))
    assert (abs(np.asarray(back, np.float64) - wide) <= error * 1.001).all()
    same, none = rounded(x, activations=None)
    assert none is None
    np.testing.assert_array_equal(same, accumulator(x))
