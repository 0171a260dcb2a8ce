# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Thinning and medians, against the textbook forms of both."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_runs import Curve
from dovetail_runs.pages import curves

VALUES = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.sampled_from([float("nan"), float("inf")])),
    min_size=1,
    max_size=300,
)


def curve(values):
    values = np.array(values, np.float64)
    return Curve(steps=np.arange(len(values)) * 3, values=values, times_s=np.zeros(len(values)))


@settings(deadline=None, derandomize=True)
@given(VALUES, st.integers(4, 80))
def test_thinning_keeps_the_ends_the_extremes_and_the_order(values, most):
    steps, kept = curves.thinned(curve(values), most)
    finite = [v for v in values if np.isfinite(v)]
    assert len(steps) <= max(most, min(len(values), most))
    assert (np.diff(steps) > 0).all()
    assert (steps[0], steps[-1]) == (0, 3 * (len(values) - 1))
    for step, value in zip(steps, kept, strict=True):
        given_value = values[step // 3]
        assert value == given_value if np.isfinite(given_value) else np.isnan(value)
    if finite:
        assert (np.nanmin(kept), np.nanmax(kept)) == (min(finite), max(finite))


def test_a_stretch_without_a_finite_value_stays_a_gap():
    values = np.r_[np.ones(100), np.full(100, np.nan), np.ones(100)]
    steps, kept = curves.thinned(curve(values), 30)
    gaps = steps[np.isnan(kept)] // 3
    assert len(gaps) > 0
    assert ((gaps >= 100) & (gaps < 200)).all()


@pytest.mark.parametrize("percent", curves.LEVELS)
def test_medians_are_those_of_their_windows(percent):
    values = np.random.default_rng(0).standard_normal(1000)
    values[[17, 500, 501, 999]] = np.nan, np.inf, np.nan, 1e9
    steps, medians = curves.median(curve(values), percent, 50)
    reach = max(2, int(1000 * percent / 200))
    for step, value in zip(steps // 3, medians, strict=True):
        side = min(max(min(step, 999 - step), max(2, reach // 4)), reach)
        window = values[max(0, step - side) : step + side + 1]
        assert value == np.median(window[np.isfinite(window)])
    assert abs(medians[-1]) < 5  # the last value alone would be 1e9


def test_a_long_window_is_sampled_and_near_its_median():
    values = np.random.default_rng(0).standard_normal(100_000)
    _, medians = curves.median(curve(values), 10, 5)
    # Of 256 standard normal values, a median has a standard deviation of 1.25 / 16.
    assert np.abs(medians).max() < 5 * 1.25 / 16


def test_nothing_finite_gives_gaps():
    _, medians = curves.median(curve([np.nan] * 60), 2, 10)
    assert np.isnan(medians).all()
