# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The page of the engine's options: each has a test, and each marker an option."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import workspace

sys.path.append(str(workspace.ROOT / "docs"))

import infer_parameters

pytestmark = pytest.mark.once

NAMES = [name for defaults in infer_parameters.options().values() for name in defaults]


def test_every_option_has_a_test() -> None:
    proofs = infer_parameters.proofs()
    honoured = {name for name, tests in proofs.items() if not all(t.refuses for t in tests)}
    refused = {name for name, tests in proofs.items() if any(t.refuses for t in tests)}
    assert set(NAMES) - honoured == set(), "options without a test that they are honoured"
    for owner in ("Sampling", infer_parameters.HTTP):
        assert set(infer_parameters.options()[owner]) - refused == set()
    assert proofs.keys() - set(NAMES) == set(), "markers of options that do not exist"
    assert len(set(NAMES)) == len(NAMES)


def test_the_page_has_a_row_of_each_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_parameters, "PAGE", tmp_path / "page.md")
    infer_parameters.write()
    page = (tmp_path / "page.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == NAMES
    assert dict(zip(NAMES, (row[1] for row in rows), strict=True))["top_p"] == "`1.0`"
    assert "`test_sampling: test_bad_values_are_refused_by_name`" in rows[0][3]


SUITE = """
import pytest

class TestAll:
    @pytest.mark.parameter("a", "b")
    @pytest.mark.parameter("c", refuses=True)
    def test_one(self): ...

@pytest.mark.parameter(NAME)
def test_two(): ...
"""


def test_markers_are_read_from_sources(tmp_path: Path) -> None:
    folder = tmp_path / "packages/infer/tests/deep"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(SUITE.replace("NAME", "'a'"))
    (folder / "other.py").write_text(SUITE)
    proofs = infer_parameters.proofs(tmp_path)
    assert proofs == {
        "a": [("test_it: test_one", False), ("test_it: test_two", False)],
        "b": [("test_it: test_one", False)],
        "c": [("test_it: test_one", True)],
    }
    (folder / "test_it.py").write_text(SUITE)
    with pytest.raises(
        ValueError, match=r"literal names; got pytest.mark.parameter\(NAME\); write"
    ):
        infer_parameters.proofs(tmp_path)
