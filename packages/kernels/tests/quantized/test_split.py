# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Digits and terms, and that the sums of integers are exact."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail_kernels.quantized import split
from dovetail_kernels.quantized.layout import PackedWeights, nibbles
from dovetail_kernels.testing.quantized import cases, check

RNG = np.random.default_rng(0)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
ROWS = hnp.arrays(np.float32, (2, 9), elements=FLOATS)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, derandomize=True)
@given(x=ROWS)
def test_digits_are_x_to_27_bits_of_its_largest(x: np.ndarray) -> None:
    digits, step = split.digits(jnp.asarray(x))
    digits, step = np.asarray(digits, np.float64), np.asarray(step, np.float64)
    assert abs(digits).max() <= 64
    value = step * (digits / 128.0 ** np.arange(4)[:, None, None]).sum(0)
    largest = abs(x.astype(np.float64)).max(1, keepdims=True)
    # The last digit's half; and steps below the least normal number are 0.
    assert (abs(value - x) <= largest * 2.0**-27 + 64 * 2.0**-126).all()


@pytest.mark.parametrize("exponent", [-126, -121, 0, 5, 6, 121, 122, 126, 127])
def test_digits_of_every_size(exponent: int) -> None:
    # 1 / 2**127 is not a normal number: rows of that size once had the digits 0.
    digits, step = split.digits(jnp.full((1, 3), 1.5 * 2.0**exponent, jnp.float32))
    assert np.asarray(digits)[:, 0, 0].tolist() == [48, 0, 0, 0]
    assert float(step[0, 0]) == (2.0 ** (exponent - 5) if exponent >= -121 else 0.0)


@pytest.mark.thorough
def test_the_largest_digit() -> None:
    digits, step = split.digits(jnp.asarray([[np.nextafter(np.float32(2), 0), -1.0]]))
    assert np.asarray(digits)[0].tolist() == [[64, -32]]
    assert float(step[0, 0]) == 1 / 32


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, derandomize=True)
@given(x=ROWS)
def test_terms_add_up_exactly(x: np.ndarray) -> None:
    terms = np.asarray(split.terms_of(jnp.asarray(x)).astype(jnp.float32), np.float64)
    small = abs(x) < 2.0**-126 * 2**24  # whose last terms are not normal
    np.testing.assert_array_equal(np.where(small, x, terms.sum(0)), x)


@pytest.mark.thorough
def test_terms_of_narrow_rows() -> None:
    x = jnp.asarray(RNG.standard_normal((3, 5)), jnp.float32)
    for dtype, count in ((jnp.bfloat16, 1), (jnp.float16, 2)):
        terms = split.terms_of(x.astype(dtype))
        assert terms.shape == (count, 3, 5)
        np.testing.assert_array_equal(
            terms.astype(jnp.float32).sum(0), x.astype(dtype).astype(jnp.float32)
        )


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [8, 4])
def test_integer_sums_are_exact(bits: int) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    q = RNG.integers(low, high, (41, 4096)).astype(np.int8)
    q[0] = low
    rows = RNG.integers(-128, 128, (5, 4096)).astype(np.int8)
    rows[0] = -128
    values = jnp.asarray(q) if bits == 8 else nibbles(jnp.asarray(q), group_size=4096)
    packed = PackedWeights(values=values, scales=jnp.ones((41, 1)), bits=bits)
    exact = rows.astype(np.int64) @ q.T.astype(np.int64)
    np.testing.assert_array_equal(split._sums(jnp.asarray(rows), packed), exact)


def test_the_longest_sum_fits() -> None:
    assert 128 * 128 * split.LONGEST < 2**31
    assert 128 * 128 * (split.LONGEST + 1) >= 2**31


@pytest.mark.thorough
def test_eight_bit_rows_are_exact_to_the_end() -> None:
    """One term, powers of two as scales: the result is the integer sum, bit by bit."""
    q = RNG.integers(-128, 128, (37, 96)).astype(np.int8)
    rows = RNG.integers(-127, 128, (3, 96))
    rows[:, 0] = 127
    packed = PackedWeights(values=jnp.asarray(q), scales=jnp.full((37, 1), 0.25), bits=8)
    x = jnp.asarray(rows * 0.5, jnp.float32)
    found = split.run(x, packed, activations="int8")
    np.testing.assert_array_equal(found, (rows @ q.T.astype(np.int64)) / 8)


@pytest.mark.thorough
def test_conforms_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "WEIGHTS", 1)
    (case,) = [case for case in cases() if case.name == "int4, one group and zero points"]

    def run(x: jnp.ndarray, w: PackedWeights) -> jnp.ndarray:
        return split.run(x, w, activations=None)

    check(run, case, grad=False)


@pytest.mark.thorough
def test_a_row_does_not_depend_on_the_others() -> None:
    q = RNG.integers(-128, 128, (37, 96)).astype(np.int8)
    packed = PackedWeights(values=jnp.asarray(q), scales=jnp.full((37, 1), 0.1), bits=8)
    x = jnp.asarray(RNG.standard_normal((9, 96)) * 10.0 ** np.arange(9)[:, None], jnp.float32)
    together = split.run(x, packed, activations=None)
    np.testing.assert_array_equal(together[4:5], split.run(x[4:5], packed, activations=None))
