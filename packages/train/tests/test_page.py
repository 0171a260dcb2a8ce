# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dovetail_train.reports import page as _page


def test_bars_are_as_long_as_the_parts_of_the_time():
    runs = [("a", {"step": 6.0, "save": 2.0, "stall": 0.0}), ("b <", {"step": 1.0, "data": 3.0})]
    block = ET.fromstring(f"<section>{_page.bars(runs)}</section>")
    stacks = [e for e in block.iter("div") if e.get("role") == "img"]
    assert [stack.get("aria-label") for stack in stacks] == ["a: 8 s", "b <: 4 s"]
    parts = [[(i.get("class"), i.get("style")) for i in stack] for stack in stacks]
    # The longest activity of both runs first; the same activity has the same colour.
    assert parts == [
        [("c0", "width:75.00%"), ("c1", "width:0.00%"), ("c2", "width:25.00%")],
        [("c0", "width:25.00%"), ("c1", "width:75.00%"), ("c2", "width:0.00%")],
    ]
    rows = [["".join(cell.itertext()) for cell in row] for row in block.iter("tr")]
    assert rows == [
        ["", "a", "b <"],
        ["step", "6 s, 75.0%", "1 s, 25.0%"],
        ["data", "0 s, 0.0%", "3 s, 75.0%"],
        ["save", "2 s, 25.0%", "0 s, 0.0%"],
    ]


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
    # Title, heading, the others once or more each; of a single run the columns have no head.
    assert "".join(root.itertext()).count(bad) == 12


def test_what_is_empty_is_left_out():
    assert _page.section("Loss", []) == ""
    assert _page.paragraph("") == ""
    assert "<section" not in _page.page("t", [_page.section("Loss", []), ""])


@pytest.mark.parametrize("one, other", [("a/b", "a_b"), ("a b", "ab"), ("é", "e"), ("_2f_", "/")])
def test_names_have_identifiers_of_their_own(one, other):
    assert _page.slug(one) != _page.slug(other)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", _page.slug(one))


def _linear(colour):
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def test_colours_stand_out_on_their_ground():
    def luminance(colour):
        return np.dot((0.2126, 0.7152, 0.0722), _linear(colour))

    # WCAG 2.2, 1.4.11: 3 to 1 for what must be seen.
    for colours, ground in ((_page._LIGHT, "#ffffff"), (_page._DARK, "#17171a")):
        for colour in colours:
            a, b = sorted((luminance(colour), luminance(ground)), reverse=True)
            assert (a + 0.05) / (b + 0.05) >= 3


# Linear RGB as protanopes and deuteranopes see it: Machado, Oliveira and Fernandes 2009, table 1.
PROTAN = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216]]
PROTAN += [[-0.003882, -0.048116, 1.051998]]
DEUTAN = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413]]
DEUTAN += [[-0.011820, 0.042940, 0.968881]]
# Linear RGB to cone responses, and their cubic roots to OKLab: Ottosson 2020.
CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
CONES += [[0.0883024619, 0.2817188376, 0.6299787005]]
LAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
LAB += [[0.0259040371, 0.7827717662, -0.8086757660]]


@pytest.mark.parametrize("seen", [np.eye(3), PROTAN, DEUTAN], ids=["all", "protan", "deutan"])
def test_colours_are_apart_also_for_the_colour_blind(seen):
    for colours in (_page._LIGHT, _page._DARK):
        linear = np.clip([np.array(seen) @ _linear(colour) for colour in colours], 0, 1)
        lab = np.cbrt(linear @ np.transpose(CONES)) @ np.transpose(LAB)
        between = np.linalg.norm(lab[:, None] - lab, axis=-1)[np.triu_indices(len(colours), 1)]
        # About 0.02 is a just noticeable difference.
        assert between.min() >= 0.13
