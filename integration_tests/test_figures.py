# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The figures that READMEs and documentation quote are those of the result files."""

import re

import pytest

import figures

pytestmark = pytest.mark.once

TEXTS = figures.texts()
# A number that is measured: with a point, or before a unit.
MEASURED = re.compile(r"[\d,]*\d\.\d+|\d[\d,]* ?(?:%|[KMG]i?B\b|(?:m?s|seconds|minutes|trials)\b)")
# Not measured: code, targets of links, versions, and sizes that an option or a name has.
GIVEN = re.compile(
    r"`[^`]*`|\]\([^)]*\)|Qwen 2, 2\.5|Apache-2\.0"
    r"|\b(?:jax|Python|for|torch|MaxText|TorchAO|bitsandbytes) \d+\.[\d.]*\d"
)
CODE = re.compile(r"^```.*?^```|^ {4}.*?$", re.DOTALL | re.MULTILINE)


def test_every_text_shows_the_figures_of_the_result_files():
    known, quoted = figures.figures(), set()
    for file in TEXTS:
        content = file.read_text(encoding="utf-8")
        assert figures.written(content, known) == content, "run python scripts/figures.py"
        assert content.count("<!-- figure:") == len(figures.MARKED.findall(content))
        # Markdown would take the whole line for HTML.
        assert re.findall(r"^ *<!-- figure.*", content, re.MULTILINE) == []
        quoted |= {match["name"] for match in figures.MARKED.finditer(content)}
    assert known.keys() == quoted


def typed_by_hand(content: str) -> list[str]:
    lines = CODE.sub("", figures.MARKED.sub("", content)).splitlines()
    return [line for line in lines if MEASURED.search(GIVEN.sub("", line))]


def test_no_measured_figure_of_a_readme_is_typed_by_hand():
    for file in (file for file in TEXTS if file.name == "README.md"):
        assert (file, typed_by_hand(file.read_text(encoding="utf-8"))) == (file, [])
    assert typed_by_hand("Loads\nup to 52 s.\n\n    sleep 5 s\n") == ["up to 52 s."]
