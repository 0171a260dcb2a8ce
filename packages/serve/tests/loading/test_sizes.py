# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Proposed batch sizes cost as little as the best of all subsets."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_serve.loading.sizes import propose_sizes


def total(histogram, costs, sizes):
    """Returns the cost of padding each batch to the next size."""
    return sum(
        number * costs[min(size for size in sizes if size >= rows)]
        for rows, number in histogram.items()
    )


@st.composite
def cases(draw):
    # Eighths, so that sums are exact and equal costs are equal.
    cost = st.integers(1, 80).map(lambda eighths: eighths / 8)
    costs = draw(st.dictionaries(st.integers(1, 20), cost, min_size=1, max_size=6))
    rows = st.integers(1, max(costs))
    histogram = draw(st.dictionaries(rows, st.integers(0, 9), min_size=1, max_size=6))
    return histogram, costs, draw(st.integers(1, 7))


@pytest.mark.thorough
@given(cases())
def test_no_other_sizes_cost_less(case):
    histogram, costs, count = case
    sizes = propose_sizes(histogram, costs, count=count)
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= count
    best = min(
        (total(histogram, costs, subset), number)
        for number in range(1, min(count, len(costs)) + 1)
        for subset in itertools.combinations(sorted(costs), number)
        if subset[-1] >= max(histogram)
    )
    assert (total(histogram, costs, sizes), len(sizes)) == best


def test_many_small_requests_get_a_size_of_their_own():
    assert propose_sizes({1: 900, 7: 100}, {1: 0.001, 4: 0.003, 8: 0.004}, count=2) == (1, 8)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (({1: 1}, {1: 1.0}, 0), ["count must be 1 or more", "got count=0", "write propose_sizes("]),
        (({}, {1: 1.0}, 1), ["histogram must have", "got histogram={}", "write propose_sizes("]),
        (({0: 1}, {1: 1.0}, 1), ["rows from 1", "got histogram={0: 1}", "write propose_sizes("]),
        (({1: -1}, {1: 1.0}, 1), ["histogram must have", "got histogram={1: -1}", "write"]),
        (({9: 1}, {1: 1.0, 8: 2.0}, 1), ["9 rows", "got sizes [1, 8]", "measure a larger size"]),
        (({1: 1}, {}, 1), ["costs must have", "got sizes []", "measure a larger size too"]),
        (({1: 1}, {0: 1.0, 1: 1.0}, 1), ["costs must have", "got sizes [0, 1]", "measure"]),
    ],
)
def test_wrong_arguments_are_refused(arguments, parts):
    histogram, costs, count = arguments
    with pytest.raises(ValueError, match="must") as caught:
        propose_sizes(histogram, costs, count=count)
    for part in parts:
        assert part in str(caught.value)
