# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.mixture.proportional import PERIOD, Cycle, shares

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)


def by_the_rule(counts, places):
    """Tijdeman's rule as it is written, in fractions."""
    weights = [Fraction(n, sum(counts)) for n in counts]
    k = sum(n > 0 for n in counts)
    least = Fraction(1, 2 * k - 2) if k > 1 else Fraction(0)
    given = [0] * len(counts)
    order = []
    for n in range(1, places + 1):
        behind = [weight * n - x for weight, x in zip(weights, given, strict=True)]
        eligible = [j for j, by in enumerate(behind) if weights[j] and by >= least]
        source = min(eligible, key=lambda j: (1 - least - behind[j]) / weights[j])
        given[source] += 1
        order.append(source)
    return order


@given(counts=COUNTS)
@settings(max_examples=60, deadline=None)
def test_the_order_is_that_of_the_rule(counts):
    places = 2 * sum(counts) + 5
    source, nth = Cycle(np.array(counts)).at(np.arange(places))
    expected = by_the_rule(counts, places)
    assert source.tolist() == expected
    assert nth.tolist() == [expected[:i].count(j) for i, j in enumerate(expected)]


@given(k=st.integers(2, 12), seed=st.integers(0, 1 << 30), most=st.integers(1, 3000))
@settings(max_examples=50, deadline=None)
def test_no_prefix_is_a_row_off(k, seed, most):
    counts = np.random.default_rng(seed).integers(1, most + 1, k)
    period = counts.sum()
    places = np.arange(2 * period + period // 3)  # across the borders of periods
    source, _ = Cycle(counts).at(places)
    given = np.cumsum(source[:, None] == np.arange(k), axis=0)
    # In integers: (2k - 2) |D x - n_j n| <= (2k - 3) D.
    off = (2 * k - 2) * np.abs(given * period - counts * (places[:, None] + 1))
    assert off.max() <= (2 * k - 3) * period


@pytest.mark.parametrize("k", [2, 3, 12])
def test_the_longest_period_keeps_the_bound(k):
    counts = np.random.default_rng(k).multinomial(PERIOD - 1, np.ones(k) / k)
    counts[0] += 1
    source, _ = Cycle(counts).at(np.arange(PERIOD))
    for j in range(k):
        off = np.abs(np.cumsum(source == j) * PERIOD - counts[j] * np.arange(1, PERIOD + 1))
        assert (2 * k - 2) * off.max() <= (2 * k - 3) * PERIOD


@given(counts=COUNTS, data=st.data())
@settings(max_examples=50, deadline=None)
def test_counting_and_finding_agree_with_the_order(counts, data):
    cycle = Cycle(np.array(counts))
    place = data.draw(st.integers(0, 4 * sum(counts)))
    source, nth = cycle.at(np.arange(place + 1))
    np.testing.assert_array_equal(
        cycle.before(place), np.bincount(source[:place], minlength=len(counts))
    )
    assert cycle.place(int(source[place]), int(nth[place])) == place


def test_a_place_far_out_needs_no_steps():
    far = 10**15
    source, nth = Cycle(np.array([3, 7])).at(np.array([far * 10 + 4]))
    expected = by_the_rule([3, 7], 5)
    assert source.tolist() == expected[-1:]
    assert nth.tolist() == [(3, 7)[expected[-1]] * far + expected[:-1].count(expected[-1])]


@pytest.mark.thorough
@given(counts=COUNTS, scale=st.fractions(Fraction(1, 7), 9))
@settings(max_examples=50, deadline=None)
def test_weights_with_a_small_denominator_are_exact(counts, scale):
    common = math.gcd(*counts)
    assert shares([n * scale for n in counts]) == [n // common for n in counts]


@given(weights=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12))
@settings(max_examples=50, deadline=None)
def test_other_weights_are_off_by_less_than_a_65536th(weights):
    exact = [Fraction(weight) for weight in weights]
    counts = shares(exact)
    assert PERIOD % sum(counts) == 0 or sum(counts) <= PERIOD
    for count, weight in zip(counts, exact, strict=True):
        assert abs(Fraction(count, sum(counts)) - weight / sum(exact)) < Fraction(1, PERIOD)


def test_the_largest_remainders_are_rounded_up():
    n = PERIOD + 1  # a prime: no smaller denominator
    assert shares([Fraction(k, n) for k in (1, 2, n - 3)]) == [1, 2, PERIOD - 3]
    # Times 65,536: .499992, 1.499977 and 65,534.00003.
    assert shares([Fraction(k, 2 * n) for k in (1, 3, 2 * n - 4)]) == [1, 1, PERIOD - 2]
    assert shares([Fraction(1, 3 * n), Fraction(3 * n - 1, 3 * n)]) == [0, 1]
