# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The figures that READMEs and documentation quote are those of the result files."""

import json
import re

import pytest

import figures
import workspace

pytestmark = pytest.mark.once

TEXTS = figures.texts()
READMES = [file for file in TEXTS if file.name == "README.md"]
LINES = [
    {"case": "a, 1", "peer": "x", "ratio": 0.1034, "faults": 30, "bytes": 6, "peer_bytes": 4},
    {"case": "a, 2", "peer": "x", "ratio": 0.05, "faults": 1100, "bytes": 1, "peer_bytes": 4},
    {"case": "b", "peer": "y", "ratio": 94.3, "faults": 0, "bytes": 0, "peer_bytes": 4},
]
# A number that is measured: with a point, or before a unit.
MEASURED = re.compile(r"[\d,]*\d\.\d+|\d[\d,]* ?(?:%|[KMG]i?B\b|(?:m?s|seconds|minutes|trials)\b)")
# Not measured: code, targets of links, versions, and sizes that an option or a name has.
GIVEN = re.compile(
    r"`[^`]*`|\]\([^)]*\)|Qwen 2, 2\.5|Apache-2\.0"
    r"|\b(?:jax|Python|for|torch|MaxText|TorchAO|bitsandbytes) \d+\.[\d.]*\d"
)


def relative(file):
    return str(file.relative_to(workspace.ROOT))


def prose(content):
    """The lines outside fenced and indented code."""
    fenced = re.sub(r"^```.*?^```", "", content, flags=re.DOTALL | re.MULTILINE)
    return [line for line in fenced.splitlines() if not line.startswith("    ")]


@pytest.fixture(scope="module")
def known():
    return figures.figures()


@pytest.mark.parametrize("file", TEXTS, ids=relative)
def test_a_text_shows_the_figures_of_the_result_files(file, known):
    content = file.read_text(encoding="utf-8")
    assert figures.written(content, known) == content, "run python scripts/figures.py"
    assert content.count("<!-- figure:") == len(figures.MARKED.findall(content))
    # Markdown would take the whole line for HTML.
    assert re.findall(r"^ *<!-- figure.*", content, re.MULTILINE) == []


def test_every_figure_is_quoted(known):
    quoted = {m["name"] for f in TEXTS for m in figures.MARKED.finditer(f.read_text())}
    assert known.keys() == quoted


@pytest.mark.parametrize("file", READMES, ids=relative)
def test_no_measured_figure_of_a_readme_is_typed_by_hand(file):
    lines = prose(file.read_text(encoding="utf-8"))
    bare = [GIVEN.sub("", figures.MARKED.sub("", line)) for line in lines]
    assert [line for line in bare if MEASURED.search(line)] == []
    assert MEASURED.search(GIVEN.sub("", "up to 52 s"))


@pytest.mark.parametrize(
    "definition, shown",
    [
        ({"case": "~^a, 1$", "take": "ratio", "format": ".3f"}, "0.103"),
        ({"case": "a, 2", "take": "ratio", "inverse": True, "format": ".0f"}, "20"),
        ({"case": "a, 1", "take": "bytes", "over": "peer_bytes"}, "1.5"),
        ({"case": "b", "take": "ratio", "scale": 0.01}, "0.94"),
        ({"peer": "x", "take": "faults", "of": "sum", "format": ",.0f"}, "1,130"),
        ({"case": "b", "take": "peer"}, "y"),
    ],
)
def test_a_definition_selects_a_line_and_prints_its_field(definition, shown):
    assert figures.text("name", definition, LINES) == shown


@pytest.mark.parametrize("case, number", [("~a", 2), ("c", 0)])
def test_a_definition_that_selects_no_line_or_several_is_refused(case, number):
    with pytest.raises(ValueError, match=f"name must select one line; got {number} for"):
        figures.text("name", {"case": case, "take": "ratio"}, LINES)


def test_a_figure_of_two_files_and_an_unknown_marker_are_refused(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "one.json").write_text(json.dumps({"x": 2.5}))
    (tmp_path / "two.jsonl").write_text(json.dumps({"x": 7}) + "\n")
    table = tmp_path / "scripts" / "figures.toml"
    table.write_text('["one.json"]\nfigures.a = { take = "x" }\n')
    assert figures.figures(table) == {"a": "2.5"}
    marked = "so <!-- figure: a -->9<!-- --> it is"
    assert figures.written(marked, {"a": "2.5"}) == "so <!-- figure: a -->2.5<!-- --> it is"
    with pytest.raises(KeyError, match="a"):
        figures.written(marked, {})
    table.write_text(table.read_text() + '["two.jsonl"]\nfigures.a = { take = "x" }\n')
    with pytest.raises(ValueError, match="one definition; got a twice; rename one"):
        figures.figures(table)
