# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from xml.etree import ElementTree

import pytest

from dovetail_quant.reports.chart import bars

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_their_values():
    root = ElementTree.fromstring(bars({"a<b": (0.5, "four & more"), "c": (0.25, "")}, label="x"))
    widths = [float(r.get("width")) for r in root.iter(f"{SVG}rect")][1:]
    assert widths[0] == 2 * widths[1] > 0
    texts = ["".join(t.itertext()) for t in root.iter(f"{SVG}text")]
    assert texts == ["x", "a<b", "0.5000  four & more", "c", "0.2500  "]


def test_values_of_nothing_are_bars_of_nothing():
    root = ElementTree.fromstring(bars({"a": (0.0, "")}, label="x"))
    assert [float(r.get("width")) for r in root.iter(f"{SVG}rect")][1:] == [0.0]


def test_a_chart_of_no_rows_is_refused():
    with pytest.raises(ValueError, match=r"needs a row, got none; quantize a site"):
        bars({}, label="x")
