# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re
import xml.etree.ElementTree as ET

import pytest

from dovetail_stack.quickstart.chart import line_chart


def _numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def test_points_lie_where_the_labelled_axes_say():
    wanted = [(0, 8.0), (30, 2.0), (100, 4.0)]
    svg = ET.fromstring(line_chart({"loss": wanted}, x_label="step", y_label="nats"))
    labels = [text for text in svg.iter("text") if text.text not in ("step", "nats")]
    x_axis = {float(t.text): float(t.get("x")) for t in labels if t.get("text-anchor") == "middle"}
    y_axis = {float(t.text): float(t.get("y")) - 4 for t in labels if t.get("text-anchor") == "end"}
    points = _numbers(svg.find("polyline").get("points"))
    for (x, y), across, down in zip(wanted, points[::2], points[1::2], strict=True):
        low, high = min(x_axis), max(x_axis)
        share = (across - x_axis[low]) / (x_axis[high] - x_axis[low])
        assert low + share * (high - low) == pytest.approx(x, abs=0.1)  # coordinates: 1 decimal
        low, high = min(y_axis), max(y_axis)
        share = (down - y_axis[low]) / (y_axis[high] - y_axis[low])
        assert low + share * (high - low) == pytest.approx(y, abs=0.01)


@pytest.mark.parametrize("points", [[(5, 3.0)], [(0, 2.0), (1, 2.0)], [(1, 1e-9), (2, 3e-9)]])
def test_one_point_a_flat_line_and_tiny_values_are_drawn(points):
    svg = ET.fromstring(line_chart({"loss": points}, x_label="step", y_label="nats"))
    assert len(list(svg.iter("circle"))) + len(list(svg.iter("polyline"))) == 1
    assert all(number == number for number in _numbers(ET.tostring(svg, encoding="unicode")))


def test_values_that_are_not_finite_are_left_out_and_none_left_is_an_error():
    svg = line_chart({"loss": [(0, 1.0), (1, float("nan")), (2, 3.0)]}, x_label="x", y_label="y")
    assert len(_numbers(ET.fromstring(svg).find("polyline").get("points"))) == 4
    with pytest.raises(ValueError, match=r"at least one finite point, got series=\['loss'\]"):
        line_chart({"loss": [(0, float("inf"))]}, x_label="x", y_label="y")


def test_names_are_escaped():
    svg = line_chart({"<b>": [(0, 1.0), (1, 2.0)], "b": [(0, 1.0)]}, x_label="<x>", y_label="&")
    texts = [text.text for text in ET.fromstring(svg).iter("text")]
    assert {"<b>", "<x>", "&"} <= set(texts)
