# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The document: one file, no network, and no way for a name to become HTML or a script."""

import base64
import gzip
import hashlib
import html.parser
import json

import pytest
from page_tables import HEADLINE, HOSTILE, PEAKS, tables_of

from dovetail_profile.page import save
from dovetail_profile.page.document import document, library, packed
from dovetail_profile.page.save import page


class Elements(html.parser.HTMLParser):
    """The elements with their attributes, and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self._is_script = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append("")

    def handle_data(self, data):
        if self._is_script:
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self._is_script = False


def content_of(parsed):
    return json.loads(gzip.decompress(base64.b64decode(parsed.scripts[0])))


def test_a_page_of_hostile_names_has_its_own_elements_alone():
    plain = Elements(page(tables_of(30), HEADLINE[:1], script="0"))
    text = page(tables_of(30, HOSTILE), HEADLINE, [HOSTILE], peaks=PEAKS, script="0")
    hostile = Elements(text)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert HOSTILE not in text
    made = content_of(hostile)
    assert made["warnings"] == [HOSTILE]
    (operations,) = [part for part in made["parts"] if part["id"] == "ops"]
    assert f"{HOSTILE}.0" in operations["views"][0]["sheets"][0]["texts"]
    assert HOSTILE not in document("", title=HOSTILE, script="0")


def test_a_page_loads_nothing_and_runs_its_two_scripts_alone():
    text = page(tables_of(3), HEADLINE, script="let x = 1;\r\n")
    assert not any(word in text for word in ("src=", "href=", "http:", "https:", "@import", "url("))
    parsed = Elements(text)
    policy = next(a["content"] for tag, a in parsed.elements if a.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()) for s in parsed.scripts[1:]]
    assert rules["script-src"] == " ".join(f"'sha256-{h.decode()}'" for h in hashes)
    assert parsed.scripts[1] == "let x = 1;\n"  # as browsers read it, which the hash is of


def test_the_content_is_packed_without_loss_and_equal_each_time():
    values = {"text": HOSTILE, "values": [1, None, 2.5]}
    data = base64.b64decode(packed(values))
    assert json.loads(gzip.decompress(data)) == values
    assert data[4:8] == bytes(4)  # no time of the compression
    with pytest.raises(ValueError, match="not JSON compliant"):
        packed({"x": float("nan")})


def test_the_library_is_the_one_script_beside_the_page():
    script = library()
    assert "Plotly" in script
    assert len(script) <= 5_000_000
    assert "</script" not in script.lower()


@pytest.mark.parametrize("count", [10, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_a_page_keeps_its_size(count):
    text = page(tables_of(count), HEADLINE, peaks=PEAKS, script="")
    assert len(text.encode()) <= 1_000_000
    made = content_of(Elements(text))
    assert {part["id"]: part["views"][0]["sheets"][0]["rows"] for part in made["parts"]}[
        "ops"
    ] == count


def test_a_page_of_too_much_says_how_many_rows_it_leaves_out(monkeypatch):
    monkeypatch.setattr(save, "BYTES", 40_000)
    text = page(tables_of(700), HEADLINE, script="")
    assert len(text.encode()) <= 40_000 + 30_000  # beside the scripts and styles
    (operations,) = [p for p in content_of(Elements(text))["parts"] if p["id"] == "ops"]
    sheet = operations["views"][0]["sheets"][0]
    assert sheet["rows"] == 200
    assert sheet["notes"][-1].startswith("500 more rows are left out")
