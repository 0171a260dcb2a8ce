# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re
from fractions import Fraction

import pytest

from dovetail_data.mixture.stage import Stage, counts_of


@pytest.mark.parametrize(
    "weights, counts",
    [
        ((0.3, 0.7), [3, 7]),  # as decimals: the binary fractions have no small denominator
        ((0.1, 0.25), [2, 5]),
        ((3, 0), [1, 0]),
        ((Fraction(1, 3), 1), [1, 3]),
        ((1e-3, 0.064), [1, 64]),
        ((1, 1e-5), [65535, 1]),  # .655 of a 65,536th
    ],
)
def test_weights_become_integers(weights, counts):
    a, b = weights
    assert counts_of(Stage(start=0, weights={"b": b, "a": a}), ["a", "b"]) == counts


@pytest.mark.parametrize(
    "weights, message",
    [
        (
            {"a": 1},
            r"of the sources ['a', 'b']: got ['a'] for the rows from 7. Pass weights={'a': 0.5",
        ),
        ({"a": 1, "b": 1, "c": 0}, "got ['a', 'b', 'c'] for the rows from 7. Pass weights={"),
        ({"a": 1, "b": -0.5}, "a number >= 0: got weights['b']=-0.5. Pass 0 to"),
        ({"a": float("nan"), "b": 1}, "a number >= 0: got weights['a']=nan. Pass 0 to"),
        ({"a": float("inf"), "b": 1}, "a number >= 0: got weights['a']=inf. Pass 0 to"),
        ({"a": 0, "b": 0.0}, "must be above 0: got {'a': 0, 'b': 0.0} for the rows from 7. Give"),
        ({"a": 1, "b": 1e-6}, "about 1/131072 of the sum: got weights['b']=1e-06 of 1.000001. R"),
    ],
)
def test_weights_that_cannot_be_are_errors(weights, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        counts_of(Stage(start=7, weights=weights), ["a", "b"])
