# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Saved profiles: the suffix decides, an old file stays until the new one is whole."""

import builtins
import gzip
import json
import re

import pytest
from page_tables import tables_of

from dovetail_profile.page.save import save

TABLES = tables_of(20)


def made():
    return TABLES


def failing():
    raise RuntimeError("no table")


def test_a_page_of_a_trace_has_its_headline(recording, tmp_path):
    path = save(tmp_path / "report.html", recording, made, warnings=["Look out."])
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "window.Plotly" in text
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_the_tables_are_one_json_object_with_a_version(recording, tmp_path):
    path = save(str(tmp_path / "profile.json"), recording, made, warnings=["Look out."])
    values = json.loads(path.read_text())
    assert (values["version"], values["warnings"]) == (1, ["Look out."])
    assert values["headline"]["host"] == "host"
    assert list(values["tables"]) == list(TABLES)
    row = values["tables"]["ops"]["rows"][3]
    assert (row["name"], row["flops"]) == ("fusion.3", None)
    assert row["self_us"] == TABLES["ops"][3].self_us
    assert values["tables"]["ops"]["notes"] == ["A note of fusion."]


def test_a_trace_says_how_many_events_it_leaves_out(recording, tmp_path, monkeypatch):
    path = save(tmp_path / "trace.json.gz", recording, failing)
    full = json.loads(gzip.decompress(path.read_bytes()))
    assert full["otherData"] == {"events left out": 0}
    monkeypatch.setattr("dovetail_profile.page.save.EVENTS", 0)
    monkeypatch.setattr("dovetail_profile.page.events._PYTHON", "CSE")  # in the place of "$"
    calls = sum(e["name"].startswith("CSE") for e in full["traceEvents"])
    with pytest.warns(UserWarning, match=f"^{calls:,} of .* events .* left out of trace.json.gz"):
        path = save(tmp_path / "trace.json.gz", recording, failing)
    short = json.loads(gzip.decompress(path.read_bytes()))
    assert len(short["traceEvents"]) == len(full["traceEvents"]) - calls


@pytest.mark.parametrize("name", ["report.html", "profile.json"])
def test_an_old_file_stays_if_the_new_one_cannot_be_made(recording, tmp_path, name, monkeypatch):
    (tmp_path / name).write_text("old")
    with pytest.raises(RuntimeError, match="no table"):
        save(tmp_path / name, recording, failing)
    monkeypatch.setattr(json, "dumps", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path / name, recording, made)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {name: "old"}


def test_a_trace_that_fails_half_way_leaves_nothing(recording, tmp_path, monkeypatch):
    (tmp_path / "trace.json.gz").write_text("old")

    def half(*_):
        yield "x" * 1000
        raise OSError("disk full")

    monkeypatch.setattr("dovetail_profile.page.save.events", half)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path / "trace.json.gz", recording, failing)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"trace.json.gz": "old"}


@pytest.mark.parametrize("name", ["report.pdf", "report", "trace.gz", "html"])
def test_another_suffix_is_refused_before_anything_is_computed(recording, tmp_path, name):
    expected = f"got path={str(tmp_path / name)!r}: write 'report.html', 'profile.json' or 'trace"
    with pytest.raises(ValueError, match=re.escape(expected)):
        save(tmp_path / name, recording, failing)


def test_a_missing_library_is_named_before_anything_is_computed(recording, tmp_path, monkeypatch):
    real = builtins.__import__

    def without_plotly(name, *args, **options):
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_plotly)
    with pytest.raises(ImportError, match=r"pip install 'dovetail-profile\[report\]'"):
        save(tmp_path / "report.html", recording, failing)
    save(tmp_path / "profile.json", recording, made)  # needs no library
