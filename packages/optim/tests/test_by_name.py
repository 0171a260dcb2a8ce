# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_optim.by_name import pick


def test_leaves_are_picked_by_name_from_a_larger_tree():
    given = {"a": {"kernel": 1, "bias": 2}, "b": 3}
    assert pick(given, {"b": "x", "a": {"kernel": "y"}}, what="shardings") == [1, 3]
    with pytest.raises(ValueError, match=r"shardings must name every parameter; got none for 'c'"):
        pick(given, {"c": 0}, what="shardings")
