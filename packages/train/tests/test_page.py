# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re
import xml.etree.ElementTree as ET

import pytest

from dovetail_train import _page


def test_bars_are_as_long_as_the_parts_of_the_time():
    runs = [("a", {"step": 6.0, "save": 2.0}), ("b <", {"step": 1.0, "data": 3.0, "save": 0.0})]
    figure = ET.fromstring(_page.bars(runs))
    (svg,) = [s for s in figure.iter("svg") if s.get("role") == "img"]
    width = float(svg.get("viewBox").split()[2])
    height = float(svg.get("viewBox").split()[3])
    bars = [(float(r.get("x")), float(r.get("width")), r.get("class")) for r in svg.iter("rect")]
    parts = [(x / width, long / width, colour) for x, long, colour in bars]
    # In order: 6/8, 2/8, then 1/4, 3/4 and nothing; the same activity has the same colour.
    assert parts == [
        (0, 0.75, "c0"),
        (0.75, 0.25, "c1"),
        (0, 0.25, "c0"),
        (0.25, 0.75, "c2"),
        (1, 0, "c1"),
    ]
    assert all(0 <= float(r.get("y")) <= height - float(r.get("height")) for r in svg.iter("rect"))
    assert [t.text for t in svg.iter("text")] == ["a, 8 s", "b <, 4 s"]
    assert (
        svg.find("desc").text == "a: step 75.0%, save 25.0%; b <: step 25.0%, data 75.0%, save 0.0%"
    )
    assert [li[0].tail for li in figure.iter("li")] == ["step", "save", "data"]


def test_text_is_escaped_wherever_it_stands():
    bad = '<script>"&'
    html = _page.page(
        bad,
        [
            _page.table([(bad, [bad])], [bad]),
            _page.facts("Facts", {bad: bad}),
            _page.paragraph(bad),
            _page.section(bad, [_page.figure(bad, "", legend=[(0, bad)], notes=[bad])]),
            _page.bars([(bad, {bad: 1.0})]),
        ],
    )
    assert "<script>" not in html
    root = ET.fromstring(html.removeprefix("<!doctype html>"))
    # Title, heading, the others once or more each.
    assert "".join(root.itertext()).count(bad) >= 14


def test_what_is_empty_is_left_out():
    assert _page.section("Loss", []) == ""
    assert _page.paragraph("") == ""
    assert "<section" not in _page.page("t", [_page.section("Loss", []), ""])


@pytest.mark.parametrize("one, other", [("a/b", "a_b"), ("a b", "ab"), ("é", "e"), ("_2f_", "/")])
def test_names_have_identifiers_of_their_own(one, other):
    assert _page.slug(one) != _page.slug(other)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", _page.slug(one))


def test_colours_stand_out_on_their_ground():
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    # WCAG 2.2, 1.4.11: 3 to 1 for what must be seen.
    for colours, ground in ((_page._LIGHT, "#ffffff"), (_page._DARK, "#17171a")):
        for colour in colours:
            a, b = sorted((luminance(colour), luminance(ground)), reverse=True)
            assert (a + 0.05) / (b + 0.05) >= 3
