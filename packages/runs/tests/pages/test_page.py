# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A page is one file, and says what it needs."""

import builtins

import pytest

from dovetail_runs import Run, page
from dovetail_runs.pages.page import document


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "r")
    with made.launch({"rate": 0.1}) as launch:
        launch.write(0, {"loss": 2.5})
    return made


def test_a_page_needs_no_other_file_and_no_network(run, tmp_path):
    file = page({"r": run}, title="My runs").write(tmp_path / "page.html")
    text = file.read_text(encoding="utf-8")
    assert "<title>My runs</title>" in text
    assert "window.Plotly" in text
    without_library = document({"runs": []}, title="t", script="0")
    assert not any(word in without_library for word in ("src=", "href=", "http:", "https:"))
    assert [path.name for path in tmp_path.glob("page*")] == ["page.html"]


def test_a_notebook_shows_it_in_a_frame_of_its_own(run):
    shown = page({"r": run})
    assert repr(shown).startswith("Page(")
    frame = shown._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!DOCTYPE html')
    assert frame.count("<") == 2  # all of the document is escaped


def test_a_live_page_loads_the_library_beside_it():
    text = document({"runs": []}, title="t", script="", every_s=2.5)
    assert '<script src="plotly.js">' in text
    assert 'data-every="2.5"' in text


def test_no_run_and_no_library_are_refused(run, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="a page needs a run, got none"):
        page({})
    with pytest.raises(ValueError, match=r"a run is a folder with run\.json, got .*not exist"):
        page({"none": Run(tmp_path / "none")})
    real = builtins.__import__

    def without_plotly(name, *args, **options):
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_plotly)
    with pytest.raises(ImportError, match=r"pip install 'dovetail-runs\[pages\]'"):
        page({"r": run})


def test_runs_without_names_and_paths_are_refused(unchecked, run):
    with pytest.raises(TypeError, match=r"mapping by the name to show, got Run\(.*pass \{'first'"):
        page(run)
    with pytest.raises(TypeError, match=r"runs or metrics, got \{'m': 'm.jsonl'\}: write Run\("):
        page({"m": "m.jsonl"})
