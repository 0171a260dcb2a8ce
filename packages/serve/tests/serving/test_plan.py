# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sizes to run for a number of rows are the cheapest."""

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_serve.serving.plan import plan

# Whole numbers, so that sums are exact.
COSTS = st.dictionaries(st.integers(1, 9), st.integers(1, 50).map(float), min_size=1, max_size=4)


@given(rows=st.integers(1, 13), costs=COSTS)
@settings(max_examples=150, deadline=None)
def test_min_cost_equals_brute_force(rows, costs):
    plans = (
        sizes
        for count in range(1, rows + 1)
        for sizes in itertools.combinations_with_replacement(sorted(costs), count)
        if sum(sizes) >= rows
    )
    cheapest = min((sum(costs[s] for s in sizes), len(sizes), sum(sizes)) for sizes in plans)
    sizes = plan(rows, costs, "min_cost")
    assert (sum(costs[s] for s in sizes), len(sizes), sum(sizes)) == cheapest
    assert list(sizes) == sorted(sizes, reverse=True)
    assert sum(sizes[:-1]) < rows


@given(rows=st.integers(1, 40), costs=COSTS)
@settings(max_examples=100, deadline=None)
def test_next_fills_the_largest_and_pads_once(rows, costs):
    sizes = plan(rows, costs, "next")
    assert sum(sizes[:-1]) < rows <= sum(sizes)
    assert set(sizes[:-1]) <= {max(costs)}
    rest = rows - sum(sizes[:-1])
    assert not any(rest <= size < sizes[-1] for size in costs)


@pytest.mark.parametrize(("of_64", "expected"), [(9.0, (8, 1)), (2.5, (64,))])
def test_nine_rows_run_as_costs_say(of_64, expected):
    assert plan(9, {1: 1.0, 8: 2.0, 64: of_64}, "min_cost") == expected


def test_a_plan_takes_memory_in_proportion_to_its_rows():
    tracemalloc.start()
    sizes = plan(4000, {1: 1.0, 2: 1.5}, "min_cost")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sizes == (2,) * 2000
    # A table that kept the sizes of each of its plans would have 32 MB.
    assert peak < 4e6
