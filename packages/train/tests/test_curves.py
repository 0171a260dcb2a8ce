# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from dovetail_train import Jsonl
from dovetail_train.reports.curves import Curve, read_history


def _curve(values):
    return Curve(np.arange(len(values)) * 3, np.asarray(values, np.float64))


@pytest.mark.parametrize("reach", [1, 3, 50])
def test_a_smoothed_value_is_the_mean_of_both_sides(reach):
    values = np.random.default_rng(reach).normal(size=29)
    values[[0, 7, 8, 28]] = np.nan
    found = _curve(values).smoothed(reach).values
    for i, value in enumerate(values):
        side = min(reach, i, len(values) - 1 - i)
        expected = np.nan if np.isnan(value) else np.nanmean(values[i - side : i + side + 1])
        # Differences of running sums of 29 numbers of order 1.
        np.testing.assert_allclose(found[i], expected, atol=1e-14)


def test_smoothing_bends_no_straight_line():
    line = np.arange(40) * 0.5 - 3
    np.testing.assert_allclose(_curve(line).smoothed(7).values, line, atol=1e-13)


@pytest.mark.parametrize("reach", [1, 3, 50])
def test_a_median_is_of_both_sides_and_no_spike_moves_it(reach):
    values = np.random.default_rng(reach).normal(size=29)
    values[[0, 7, 8, 28]] = np.nan
    medians = _curve(values).medians(reach, most=1000)
    np.testing.assert_array_equal(medians.steps, np.arange(29) * 3)
    for i, value in enumerate(values):
        side = min(reach, i, len(values) - 1 - i)
        expected = np.nan if np.isnan(value) else np.nanmedian(values[i - side : i + side + 1])
        np.testing.assert_array_equal(medians.values[i], expected)
    rates = np.full(500, 8e3)
    rates[250] = 2e6
    spaced = _curve(rates).medians(5, most=100)
    assert (len(spaced.steps), spaced.steps[0], spaced.steps[-1]) == (100, 0, 499 * 3)
    assert set(spaced.values) == {8e3}


@pytest.mark.parametrize("count", [1001, 5000, 12345])
def test_thinning_keeps_every_extreme_and_the_ends(count):
    rng = np.random.default_rng(count)
    values = rng.normal(size=count)
    spikes = rng.choice(count, 20, replace=False)
    values[spikes] = 50 + np.arange(20)
    curve = _curve(values)
    thin = curve.thinned(1000)
    assert len(thin.steps) <= 1002
    assert (np.diff(thin.steps) > 0).all()
    np.testing.assert_array_equal(thin.values, values[thin.steps // 3])
    assert {0, (count - 1) * 3} <= set(thin.steps.tolist())
    # Spikes that share a stretch stand for one another.
    assert (thin.values >= 50).sum() >= 15
    assert (thin.values.min(), thin.values.max()) == (values.min(), values.max())


def test_few_points_are_not_thinned():
    curve = _curve(np.arange(1000.0))
    assert curve.thinned(1000) is curve


def test_a_stretch_without_values_stays_a_gap_and_a_lone_one_does_not_break_the_line():
    values = np.arange(4000.0)
    values[1000:2000] = np.nan
    values[3001] = np.nan
    thin = _curve(values).thinned(100)
    gaps = thin.steps[np.isnan(thin.values)] // 3
    assert gaps.min() >= 1000
    assert gaps.max() < 2000
    assert len(gaps) >= 10


@pytest.fixture
def resumed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = Jsonl(path)
    for step in range(6):
        first.write(step, {"loss": 6.0 - step})
    second = Jsonl(path)
    second.write(4, {"loss": 2.0, "skipped": 0})
    second.write(5, {"loss": 99.0, "skipped": 1, "step_time_s": 0.25, "stall_s": 0.5})
    second.write(5, {"eval/x": 0.5})
    second.write(6, {"loss": math.nan, "skipped": 0})
    return path


def test_a_history_knows_its_resumes_and_its_skips(resumed):
    history = read_history("run", resumed)
    assert history.names() == ["loss", "skipped", "step_time_s", "stall_s", "eval/x"]
    assert list(history.resumes) == [4]
    assert (list(history.skipped), list(history.stalled)) == ([5], [5])
    assert history.last("loss") == 2.0
    assert history.last("eval/x") == 0.5


def test_a_curve_has_gaps_where_a_step_was_skipped_or_not_finite(resumed):
    history = read_history("run", resumed)
    curve = history.curve("loss")
    assert curve.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(curve.values, [6, 5, 4, 3, 2, np.nan, np.nan])
    evaluated = history.curve("eval/x")
    assert (evaluated.steps.tolist(), evaluated.values.tolist()) == ([5], [0.5])


def test_a_name_without_a_finite_value_has_no_last(tmp_path):
    Jsonl(tmp_path / "m.jsonl").write(0, {"loss": math.inf})
    assert read_history("run", tmp_path / "m.jsonl").last("loss") is None


def test_a_run_without_steps_is_refused(tmp_path):
    (tmp_path / "m.jsonl").touch()
    with pytest.raises(
        ValueError, match=r"at least one step, got none in 'first' \(.*m\.jsonl\); "
    ):
        read_history("first", tmp_path / "m.jsonl")
