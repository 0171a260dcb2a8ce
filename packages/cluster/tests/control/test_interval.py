# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The advised interval against a numeric minimum of the expected wall time, and the paper."""

import math

import pytest

from dovetail_cluster import advised_interval_s


def wall(interval_s, save_s, failure_s):
    """Expected seconds per second of training, up to a factor for restarts (Daly, equation 20)."""
    return failure_s * math.expm1((interval_s + save_s) / failure_s) / interval_s


def least(save_s, failure_s):
    """The interval with the least expected wall time, by golden sections."""
    low, high, ratio = 1e-6 * failure_s, 5 * failure_s, (math.sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if wall(left, save_s, failure_s) < wall(right, save_s, failure_s):
            high = right
        else:
            low = left
    return (low + high) / 2


@pytest.mark.capability("advice on the checkpoint interval")
@pytest.mark.parametrize("ratio", (1e-4, 1e-3, 0.01, 0.1, 0.3, 0.7))
def test_wastes_least(ratio):
    failure_s = 7200.0
    interval_s = advised_interval_s(ratio * failure_s, failure_s)
    # The series ends at a third order in the root of save_s / failure_s.
    assert interval_s == pytest.approx(least(ratio * failure_s, failure_s), rel=0.02)
    # Near the minimum the wall time is flat.
    best = wall(least(ratio * failure_s, failure_s), ratio * failure_s, failure_s)
    assert wall(interval_s, ratio * failure_s, failure_s) <= best * 1.001


@pytest.mark.parametrize(
    "failure_minutes, save_minutes, interval_minutes",
    ((24 * 60, 5, 117), (6 * 60, 5, 57), (15, 5, 9.1)),  # figures 3 to 5 of the paper
)
def test_is_the_papers(failure_minutes, save_minutes, interval_minutes):
    interval_s = advised_interval_s(save_minutes * 60.0, failure_minutes * 60.0)
    assert interval_s / 60 == pytest.approx(interval_minutes, rel=0.01)


def test_a_save_that_takes_longer_than_two_failures():
    assert advised_interval_s(20.0, 10.0) == 10.0
    assert advised_interval_s(19.999, 10.0) == pytest.approx(10.0, rel=0.15)


@pytest.mark.parametrize("save_s, failure_s", ((0.0, 1.0), (1.0, -1.0), (1.0, math.inf)))
def test_refuses(save_s, failure_s):
    with pytest.raises(ValueError, match=r"must be a number of seconds above 0, got .*; write"):
        advised_interval_s(save_s, failure_s)
