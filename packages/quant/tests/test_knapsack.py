# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The best choice against every choice there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_quant.reports.knapsack import knapsack

OPTION = st.tuples(st.integers(1, 40), st.floats(0, 10))


def brute_force(sizes, costs, limit):
    """The least cost of every choice within the limit."""
    return min(
        sum(c[o] for c, o in zip(costs, options, strict=True))
        for options in itertools.product(*(range(len(s)) for s in sizes))
        if sum(s[o] for s, o in zip(sizes, options, strict=True)) <= limit
    )


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=4), st.floats(0, 1))
def test_it_is_the_best_of_all_choices(items, share):
    sizes = [[s for s, _ in one] for one in items]
    costs = [[c for _, c in one] for one in items]
    least, most = sum(map(min, sizes)), sum(map(max, sizes))
    limit = least + int(share * (most - least))
    picked = knapsack(sizes, costs, limit=limit)
    assert sum(s[o] for s, o in zip(sizes, picked, strict=True)) <= limit
    found = sum(c[o] for c, o in zip(costs, picked, strict=True))
    assert found == pytest.approx(brute_force(sizes, costs, limit), rel=1e-12, abs=1e-12)


def test_the_best_by_the_byte_is_not_the_best():
    sizes, costs = [[0, 6], [0, 5], [0, 5]], [[7.0, 0.0], [5.0, 0.0], [5.0, 0.0]]
    assert knapsack(sizes, costs, limit=10) == [0, 1, 1]
    assert knapsack(sizes, costs, limit=9) == [1, 0, 0]


def test_hundreds_of_items_keep_the_bound():
    """The cost lies between the bound of any price and that of the best single steps."""
    rng = np.random.default_rng(0)
    sizes = [sorted(map(int, rng.integers(1, 10**6, 4))) for _ in range(300)]
    costs = [sorted(map(float, rng.exponential(size=4)), reverse=True) for _ in range(300)]
    limit = sum(one[1] for one in sizes)
    picked = knapsack(sizes, costs, limit=limit)
    found = sum(c[o] for c, o in zip(costs, picked, strict=True))
    assert sum(s[o] for s, o in zip(sizes, picked, strict=True)) <= limit
    prices = np.geomspace(1e-9, 1e-3, 400)
    bounds = [
        sum(
            min(c + p * s for s, c in zip(*one, strict=True))
            for one in zip(sizes, costs, strict=True)
        )
        - p * limit
        for p in prices
    ]
    # 400 prices come within one in a thousand of the best one, and that lies below the best choice
    # by less than one item's largest step.
    assert max(bounds) <= found <= max(bounds) * 1.001 + max(c[0] for c in costs)


def test_a_limit_below_the_smallest_says_by_how_much():
    with pytest.raises(ValueError, match=r"got limit=4 where they take 5; add 1 bytes"):
        knapsack([[2, 9], [3]], [[1.0, 0.0], [0.0]], limit=4)
