# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Curves for a page: thinned to some points, and smoothed by medians."""

import numpy as np
from jaxtyping import Float64

from dovetail_runs.metrics.metrics import Curve

LEVELS = (1, 2, 5, 10)  # percent of the values in the window of a median
_MOST = 256  # values of a window, evenly spaced: the median of more is as good and slower
Points = tuple[np.ndarray, np.ndarray]


def thinned(curve: Curve, most: int) -> Points:
    """Returns steps i64[m] and values f64[m], m <= `most`: the lowest and highest of each stretch.

    The first and the last stay. NaN and infinities become gaps, NaN.

    Args:
        curve: The curve.
        most: Largest number of points, at least 4.
    """
    count = len(curve)
    values = np.where(np.isfinite(curve.values), curve.values, np.nan)
    if count <= most:
        return curve.steps, values
    bins = (most - 2) // 2
    size = -(-count // bins)
    padded = np.full(bins * size, np.nan)
    padded[:count] = values
    stretches = padded.reshape(bins, size)
    empty = np.isnan(stretches).all(1)
    starts = np.arange(bins) * size
    low = np.argmin(np.where(np.isnan(stretches), np.inf, stretches), 1) + starts
    high = np.argmax(np.where(np.isnan(stretches), -np.inf, stretches), 1) + starts
    gaps = starts[empty & (starts < count)]
    places = np.unique(np.r_[0, low[~empty], high[~empty], gaps, count - 1])
    return curve.steps[places], values[places]


def median(curve: Curve, percent: int, most: int) -> Points:
    """Returns medians over windows of `percent` of the values, at evenly spaced places.

    Both sides of a window shrink alike towards the ends, to a quarter: unequal sides would bend the
    ends of a curve that falls, and a single value is not robust. A window without a finite value is
    a gap, NaN.

    Args:
        curve: The curve.
        percent: Share of the values in a window.
        most: Largest number of points.

    Returns:
        Steps i64[m] and medians f64[m].
    """
    count = len(curve)
    places = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
    reach = max(2, int(count * percent / 200))
    side = np.minimum(places, count - 1 - places).clip(max(2, reach // 4), reach)
    first, last = np.maximum(places - side, 0), np.minimum(places + side, count - 1)
    return curve.steps[places], _medians(curve.values, first, last)


def _medians(
    values: Float64[np.ndarray, " n"], first: np.ndarray, last: np.ndarray
) -> Float64[np.ndarray, " m"]:
    """Returns the medians of values[first : last + 1], of at most `_MOST` values each."""
    most = min(_MOST, int((last - first).max(initial=0)) + 1)
    stride = np.maximum(1.0, (last - first) / max(1, most - 1))[:, None]
    places = first[:, None] + np.rint(np.arange(most) * stride).astype(np.int64)
    within = places <= last[:, None]
    windows = values[np.where(within, places, 0)]
    windows = np.where(within & np.isfinite(windows), windows, np.nan)
    medians = np.full(len(first), np.nan)
    some = ~np.isnan(windows).all(1)
    medians[some] = np.nanmedian(windows[some], axis=1)
    return medians
