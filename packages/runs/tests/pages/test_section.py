# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sections of the caller: drawn as their kind says, escaped, and refused before a page is made."""

import re
import xml.etree.ElementTree as ET

import pytest

from dovetail_runs import Run, Section, page
from dovetail_runs.pages.content import content

BAD = '<script>"&'


def test_numbers_are_bars_as_long_as_their_share():
    root = ET.fromstring(Section(heading="bits", content={"a": 2.0, "b": 0.5, "c": 0.0}).html())
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert rows == [["a", "2", ""], ["b", "0.5", ""], ["c", "0", ""]]
    widths = [bar.get("style") for bar in root.iter("i")]
    assert widths == ["width:100.0%", "width:25.0%", "width:0.0%"]


@pytest.mark.parametrize("kind", [str, list, dict])
def test_texts_are_escaped_and_keep_their_lines(kind):
    text = f"{BAD}\nsecond"
    some = {str: text, list: [text, "b"], dict: {BAD: text}}[kind]
    root = ET.fromstring(Section(heading=BAD, content=some, note=BAD).html())
    tag = {str: "p", list: "pre", dict: "td"}[kind]
    assert root.find("h2").text == BAD
    assert next(root.iter(tag)).text == text
    assert [p.text for p in root.iter("p")][-1] == BAD


def test_sections_are_part_of_a_page(tmp_path):
    with Run(tmp_path / "r").launch() as launch:
        launch.write(0, {"loss": 1.0})
    section = Section(heading="Scores", content={"ours": 0.5})
    shown = content({"r": Run(tmp_path / "r")}, sections=[section])
    assert shown["sections"] == section.html()
    assert "Scores" in page({"r": Run(tmp_path / "r")}, sections=[section]).html


@pytest.mark.parametrize(
    "content, error, said",
    [
        ({}, ValueError, "a section needs content, got content={} under 'h': leave the sec"),
        (2.5, TypeError, "got content=2.5 under 'h': write content={'loss': 2.5} for a bar"),
        ({"a": 1.0, "b": "x"}, TypeError, "write str(value) for a table of text"),
        ({"a": -1.0}, ValueError, "bars must be finite numbers from 0, got {'a': -1.0} under 'h'"),
        ({"a": float("nan")}, ValueError, "got {'a': nan} under 'h': pass them as text"),
    ],
)
def test_content_that_cannot_be_drawn_is_refused(unchecked, content, error, said):
    with pytest.raises(error, match=re.escape(said)):
        Section(heading="h", content=content)
