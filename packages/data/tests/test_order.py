# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import collections
import hashlib
import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.rows.order import Order, Permutation


@given(n=st.integers(1, 3000), key=st.text(max_size=5))
@settings(max_examples=60, deadline=None)
def test_every_value_occurs_once(n, key):
    values = Permutation(n, key=key)(np.arange(n))
    np.testing.assert_array_equal(np.sort(values), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 65_536, 65_537])
def test_a_bijection_at_the_edges_of_the_domain(n):
    values = Permutation(n, key="edge")(np.arange(n))
    np.testing.assert_array_equal(np.sort(values), np.arange(n))


def test_one_place_needs_no_table():
    n = 10**15
    places = np.array([0, 1, n // 3, n - 1])
    tracemalloc.start()
    values = Permutation(n, key="far")(places)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000  # bytes
    assert len(set(values.tolist())) == 4
    assert values.min() >= 0
    assert values.max() < n


@pytest.mark.parametrize("n", [2, 3, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_all_orders_of_a_few_rows_are_about_equally_likely(n):
    draws = 40 * math.factorial(n)
    seen = collections.Counter(
        tuple(Permutation(n, key=str(key))(np.arange(n)).tolist()) for key in range(draws)
    )
    assert set(seen) == set(itertools.permutations(range(n)))
    chi2 = sum((count - 40) ** 2 / 40 for count in seen.values())
    degrees = math.factorial(n) - 1
    assert chi2 < degrees + 5 * math.sqrt(2 * degrees)  # 5 standard deviations of chi squared


def test_neighbours_are_scattered():
    n = 10_007
    values = Permutation(n, key="scatter")(np.arange(n))
    distance = np.abs(np.diff(values)).mean()
    # Two uniform draws are n/3 apart with deviation n/4.2; their mean, n/(4.2 sqrt n).
    assert abs(distance - n / 3) < 5 * n / (4.2 * math.sqrt(n))
    assert (values == np.arange(n)).sum() < 8  # fixed points of a random permutation: Poisson(1)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [257, 4099, 10**9 + 7])  # both numbers of rounds
def test_neighbours_are_independent_over_keys(n):
    draws = 2000
    places = np.array([n // 2, n // 2 + 1])
    values = np.array([Permutation(n, key=str(key))(places) for key in range(draws)])
    cells = np.bincount(values[:, 0] * 5 // n * 5 + values[:, 1] * 5 // n, minlength=25)
    chi2 = ((cells - draws / 25) ** 2 / (draws / 25)).sum()
    assert chi2 < 24 + 5 * math.sqrt(2 * 24)  # 5 standard deviations of chi squared


def in_plain_integers(n, key, i):
    """The definition again, in Python's integers: what runs in progress rely on."""
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    while True:
        left, right = divmod(i, b)
        for turn in range(16 if n < 4096 else 8):
            digest = hashlib.sha256(f"{key}/{n}/{turn}".encode()).digest()
            z = ((right, left)[turn % 2] + int.from_bytes(digest[:8], "little")) % 2**64
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
            z = (z ^ (z >> 31)) >> 32
            if turn % 2:
                right = (right + z) % b
            else:
                left = (left + z) % a
        i = left * b + right
        if i < n:
            return i


@pytest.mark.parametrize("n", [1, 7, 4095, 4096, 10**12 + 39])
def test_the_arithmetic_is_that_of_plain_integers(n):
    places = np.unique(np.linspace(0, n - 1, 30).astype(np.int64))
    expected = [in_plain_integers(n, "rows/0/1", i) for i in places.tolist()]
    permutation = Permutation(n, key="rows/0/1")
    assert permutation(places).tolist() == expected
    assert permutation(places[-3:]).tolist() == expected[-3:]


@pytest.mark.parametrize("n", [10**9, 10**9 + 7, 1 << 40])
def test_many_rows_are_hit_evenly_and_none_twice(n):
    draws = 100_000  # several blocks
    places = np.arange(n - draws, n)
    values = Permutation(n, key="far")(places)
    assert len(np.unique(values)) == draws
    assert values.min() >= 0
    assert values.max() < n
    for cells in (values * 64 // n, values % 64):
        counts = np.bincount(cells, minlength=64)
        chi2 = ((counts - draws / 64) ** 2 / (draws / 64)).sum()
        assert chi2 < 63 + 5 * math.sqrt(2 * 63)  # 5 standard deviations of chi squared


@pytest.mark.thorough
@given(
    n=st.integers(1, 300),
    start=st.integers(0, 1000),
    k=st.integers(0, 40),
    seed=st.none() | st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_any_places_at_once_are_those_one_by_one(n, start, k, seed):
    rows = Order(n, seed=seed)(np.arange(start, start + k))
    one_by_one = [Order(n, seed=seed)(np.array([i])).tolist() for i in range(start, start + k)]
    assert rows.tolist() == list(itertools.chain(*one_by_one))
    assert rows.dtype == np.int64


def test_each_epoch_has_every_row_once_and_its_own_order():
    order = Order(97, seed=3)
    places = np.arange(3 * 97)
    epochs = order(places).reshape(3, 97)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(97), (3, 1)))
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
    np.testing.assert_array_equal(order(places[::-1]), epochs.reshape(-1)[::-1])


def test_without_a_seed_the_order_is_that_of_the_rows():
    np.testing.assert_array_equal(Order(3, seed=None)(np.arange(7)), [0, 1, 2, 0, 1, 2, 0])


def test_no_rows_is_an_error():
    with pytest.raises(ValueError, match=r"n >= 1 places: got n=0. Give more"):
        Permutation(0, key="")
