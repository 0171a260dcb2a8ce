# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Treemaps: amounts add up, chains are one area, fractions are weighted."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dovetail_profile.page.tree import tree

PATHS = st.lists(st.sampled_from("abc"), max_size=4)
LEAVES = st.lists(st.tuples(PATHS, st.floats(0, 1e6), st.none() | st.floats(0, 1)), max_size=30)


def totals(picture):
    """Returns the amount of each node with those below it."""
    amounts = list(picture["values"])
    for i in range(len(amounts) - 1, 0, -1):
        amounts[picture["parents"][i]] += amounts[i]
    return amounts


@given(LEAVES)
def test_amounts_add_up_and_parents_come_first(leaves):
    picture = tree(leaves, title="t", unit="us")
    amount = sum(value for _, value, _ in leaves)
    # Each of at most 121 numbers is rounded to five digits.
    np.testing.assert_allclose(totals(picture)[0], amount, rtol=121 * 5e-5, atol=1e-300)
    assert all(parent < i for i, parent in enumerate(picture["parents"]))
    assert picture["parents"].count(-1) == 1


def test_a_chain_is_one_area_and_a_branch_is_not():
    leaves = [(("layers", "0", "q"), 3.0, None), (("layers", "1"), 1.0, None), ((), 2.0, None)]
    picture = tree(leaves, title="t", unit="us")
    assert dict(zip(picture["labels"], picture["values"], strict=True)) == {
        "all": 2,  # of its own
        "layers": 0,
        "0.q": 3,
        "1": 1,
    }
    assert "0: q" in tree(leaves, title="t", unit="us", joint=": ")["labels"]


def test_a_node_with_an_amount_of_its_own_is_no_chain():
    picture = tree([(("a",), 1.0, None), (("a", "b"), 1.0, None)], title="t", unit="us")
    assert picture["labels"] == ["all", "a", "b"]
    assert picture["values"] == [0, 1, 1]


def test_small_nodes_are_part_of_their_parents():
    leaves = [(("a", "large"), 9999.0, None), (("a", "small"), 1.0, None)]
    picture = tree(leaves, title="t", unit="us")
    assert picture["labels"] == ["all", "a", "large"]
    assert picture["values"] == [0, 1, 9999]


def test_fractions_are_means_by_amount_of_what_is_known():
    leaves = [(("a",), 3.0, 0.5), (("b",), 1.0, 0.1), (("c",), 6.0, None)]
    picture = tree(leaves, title="t", unit="us")
    of = dict(zip(picture["labels"], picture["fractions"], strict=True))
    assert of == {"all": (3 * 0.5 + 0.1) / 4, "a": 0.5, "b": 0.1, "c": None}
