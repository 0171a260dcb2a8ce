# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import itertools
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail_train.reports import chart as _chart
from dovetail_train.reports.chart import Line, Marks, line_chart, number
from dovetail_train.reports.curves import Curve

UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _value(label):
    return float(label.rstrip("kMGT")) * UNITS.get(label[-1], 1)


def _axis(svg, kind, *, log):
    """The inverse of an axis, from what is written on it: pixels -> value."""
    texts = [t for t in svg.iter("text") if t.get("class") == kind]
    values = np.array([_value(t.text) for t in texts])
    pixels = np.array([float(t.get(kind)) for t in texts])
    assert len(values) >= 2
    slope, offset = np.polyfit(pixels, np.log(values) if log else values, 1)
    return lambda at: np.exp(slope * at + offset) if log else slope * at + offset


def _drawn(svg, *, log=False):
    """[(steps, values)] of each stretch, read back through the labels of the axes."""
    to_step, to_value = _axis(svg, "x", log=False), _axis(svg, "y", log=log)
    found = []
    for element in svg.iter():
        points = []
        if element.tag == "polyline":
            points = [p.split(",") for p in element.get("points").split()]
        elif element.tag == "circle":
            points = [(element.get("cx"), element.get("cy"))]
        if points:
            across, down = np.array(points, float).T
            found.append((to_step(across), to_value(down)))
    return found


def _chart_of(curves, **options):
    lines = [Line(label=f"run {i}", curve=c, series=i) for i, c in enumerate(curves)]
    text = line_chart(lines, id="c", title="loss", **options)
    svg = ET.fromstring(text)
    _check_geometry(svg)
    return svg


def _check_geometry(svg):
    """Everything lies within the view, and no two labels of an axis touch."""
    left, top, width, height = map(float, svg.get("viewBox").split())
    for element in svg.iter():
        for name, value in element.attrib.items():
            numbers = []
            if name in ("x", "x1", "x2", "cx"):
                numbers = [(float(value), left, width)]
            elif name in ("y", "y1", "y2", "cy"):
                numbers = [(float(value), top, height)]
            elif name == "points":
                for point in value.split():
                    across, down = map(float, point.split(","))
                    numbers += [(across, left, width), (down, top, height)]
            assert all(low <= n <= low + size for n, low, size in numbers), (element.tag, name)
    # A digit of 16 px is about 9 px wide. On a phone, of 23 px and 13 px, with a margin of 18.
    for digit, margin, tall in ((9, 0, 12), (13, 18, 17)):
        spans = []
        for text in svg.iter("text"):
            size, at = digit * len(text.text), float(text.get("x"))
            start = at - size if text.get("class") == "y" else at - size / 2
            assert start >= -margin
            assert start + size <= width + margin
            if text.get("class") == "x":
                spans.append((start, start + size))
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        downs = sorted(float(t.get("y")) for t in svg.iter("text") if t.get("class") == "y")
        assert all(b - a >= tall for a, b in itertools.pairwise(downs))


def _curve(steps, values):
    return Curve(np.asarray(steps, np.int64), np.asarray(values, np.float64))


def test_the_lines_are_the_values():
    rng = np.random.default_rng(0)
    steps = np.arange(0, 700, 7)
    curves = [_curve(steps, rng.normal(size=100)), _curve(steps + 3, rng.normal(size=100) - 5)]
    for curve, (found_steps, found) in zip(curves, _drawn(_chart_of(curves)), strict=True):
        # A hundredth of a pixel, of 412 for 700 steps and of 256 for a range of about 10.
        np.testing.assert_allclose(found_steps, curve.steps, atol=0.03)
        np.testing.assert_allclose(found, curve.values, atol=2e-3)


def test_a_wide_range_of_positive_values_is_logarithmic():
    values = 10 ** np.random.default_rng(1).uniform(-3, 2, 50)
    svg = _chart_of([_curve(np.arange(50), values)])
    ((steps, found),) = _drawn(svg, log=True)
    np.testing.assert_allclose(steps, np.arange(50), atol=0.01)
    # Half a hundredth of a pixel of 256 for five decades.
    np.testing.assert_allclose(found, values, rtol=1e-3)
    assert svg.find("title").text == "loss over steps, logarithmic"


def test_the_axis_is_linear_where_it_is_asked_for_or_values_are_not_positive():
    values = np.array([0.5, 100.0, 3.0])
    tiny = np.array([5e-324, 100.0, 3.0])
    for chosen, options in (
        (values, {"log": False}),
        (values - 0.5, {}),
        (values - 1, {}),
        (tiny, {}),
    ):
        ((_, found),) = _drawn(_chart_of([_curve([0, 1, 2], chosen)], **options))
        np.testing.assert_allclose(found, chosen, atol=0.02)


def test_an_axis_from_zero_begins_there():
    svg = _chart_of([_curve([0, 1, 2], [100.0, 101.0, 99.0])], from_zero=True)
    labels = [t.text for t in svg.iter("text") if t.get("class") == "y"]
    assert labels[0] == "0"
    ((_, found),) = _drawn(svg)
    np.testing.assert_allclose(found, [100, 101, 99], atol=0.03)


def test_a_missing_value_breaks_the_line_and_a_lone_one_is_a_dot():
    values = [1.0, 2.0, math.nan, 3.0, math.nan, math.nan, 4.0, 5.0]
    svg = _chart_of([_curve(np.arange(8), values)])
    stretches = [found.round(2).tolist() for _, found in _drawn(svg)]
    assert stretches == [[1.0, 2.0], [3.0], [4.0, 5.0]]
    assert len(list(svg.iter("circle"))) == 1


@pytest.mark.parametrize("value", [0.0, 2.5, -3.0, 1e-7, 4e9])
def test_one_step_is_a_dot_on_axes(value):
    svg = _chart_of([_curve([17], [value])])
    ((steps, found),) = _drawn(svg)
    assert steps == pytest.approx(17, abs=0.01)
    assert found == pytest.approx(value, rel=1e-3, abs=1e-3 * (abs(value) or 1))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    first=st.integers(0, 10**7),
    count=st.integers(2, 60),
    stride=st.integers(1, 50_000),
    low=st.floats(-1e6, 1e6),
    spread=st.floats(1e-3, 1e6),
    seed=st.integers(0, 99),
)
@example(first=1, count=50, stride=3235, low=0.0, spread=1.0, seed=0)  # 20k beside 100k
def test_any_range_fits_its_axes(first, count, stride, low, spread, seed):
    values = low + spread * np.random.default_rng(seed).uniform(size=count)
    values[:2] = low, low + spread
    # As for any run, the digits that differ must be few enough to write.
    if abs(low) > 1e4 * spread:
        return
    _chart_of([_curve(first + stride * np.arange(count), values)])


def test_lines_differ_by_colour_and_then_by_dash():
    curves = [_curve([0, 1], [i, i + 1.0]) for i in range(_chart.COLOURS + 1)]
    svg = _chart_of(curves)
    styles = [(p.get("class"), p.get("stroke-dasharray")) for p in svg.iter("polyline")]
    assert len(set(styles)) == len(curves)
    assert styles[0][0] == styles[-1][0]


def test_marks_stand_at_their_steps_once_per_pixel():
    curve = _curve(np.arange(1000), np.linspace(1, 2, 1000))
    skipped = [10, 400, *range(700, 800), 5000]
    marks = [Marks(series=0, resumed=[300], skipped=skipped, stalled=[10, 600])]
    svg = _chart_of([curve], marks=marks)
    to_step = _axis(svg, "x", log=False)
    found = {"resume": [], "skip": [], "stall": []}
    for line in svg.iter("line"):
        kind = line.get("class").split()[0]
        if kind in found:
            assert line.get("x1") == line.get("x2")
            found[kind].append(float(to_step(float(line.get("x1")))))
    np.testing.assert_allclose(found["resume"], [300], atol=0.05)
    np.testing.assert_allclose(found["skip"][:2], [10, 400], atol=0.05)
    np.testing.assert_allclose(found["stall"], [10, 600], atol=0.05)
    # 100 steps on 44 pixels.
    assert 40 <= len(found["skip"]) - 2 <= 46
    titles = [
        line.find("title").text for line in svg.iter("line") if line.find("title") is not None
    ]
    said = {"resumed at step 300", "step 10 was skipped", "step 10 came after a stall"}
    assert said <= set(titles)


def test_a_chart_says_what_it_shows():
    text = line_chart(
        [
            Line(label="a < b", curve=_curve([0, 1, 2], [3.0, 1.0, 2.0]), series=0),
            Line(label="raw", curve=_curve([0, 1], [3.0, 1.0]), series=0, faint=True),
        ],
        id="x",
        title="loss & co",
    )
    svg = ET.fromstring(text)
    assert svg.get("role") == "img"
    assert svg.get("aria-labelledby").split() == [svg[0].get("id"), svg[1].get("id")]
    assert svg.find("title").text == "loss & co over steps"
    assert svg.find("desc").text == "a < b: from 3 to 2, lowest 1"
    assert [p.get("class") for p in svg.iter("polyline")] == ["c0", "faint c0"]


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"),
        (0.41237, "0.4124"),
        (9999.0, "9999"),
        (131072.0, "131.1k"),
        (2.5e6, "2.5M"),
        (3.2e9, "3.2G"),
        (1.5e13, "15T"),
        (-20000.0, "-20k"),
        (3e-5, "3e-05"),
    ],
)
def test_numbers_have_four_digits(value, text):
    assert number(value) == text
