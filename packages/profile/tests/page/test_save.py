# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Saved profiles: the suffix decides, an old file stays until the new one is whole."""

import base64
import builtins
import dataclasses
import gzip
import json
import re

import pytest
from page_tables import PEAKS, rows_of

from dovetail_profile.page.save import json_of, save
from dovetail_profile.profile import Profile
from dovetail_profile.table import Table
from dovetail_profile.tables.ops import OpRow


def failing():
    raise RuntimeError("no table")


def test_a_page_has_a_part_for_each_table_of_a_trace(recording, tmp_path):
    path = Profile(recording).save(tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "window.Plotly" in text
    data = text.partition('id="content">')[2].partition("<")[0]
    content = json.loads(gzip.decompress(base64.b64decode(data)))
    parts = [part["id"] for part in content["parts"]]
    assert {"steps", "roofline", "ops", "memory", "modules"} <= set(parts)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_the_tables_are_one_json_object_with_a_version(recording, tmp_path):
    profile = Profile(recording)
    values = json.loads(profile.save(str(tmp_path / "profile.json")).read_text())
    assert (values["version"], values["warnings"]) == (1, list(profile.warnings))
    assert values["headline"]["host"] == recording.hosts[0]
    for name, table in (("ops", profile.ops()), ("ops/scope", profile.ops("scope"))):
        assert values["tables"][name]["rows"] == json.loads(table.to_json())
        assert values["tables"][name]["notes"] == list(table.notes)
    assert values["tables"]["steps"]["rows"] == json.loads(profile.steps().to_json())


def test_a_file_has_the_tables_that_the_profile_keeps(recording, tmp_path):
    profile = Profile(recording)
    first = profile.steps().top(1)
    profile._tables = dict.fromkeys(profile._tables, first)
    values = json.loads(profile.save(tmp_path / "profile.json").read_text())
    assert values["tables"]["steps"]["rows"] == json.loads(first.to_json())


def test_peaks_reach_the_roofline(recording, tmp_path):
    path = Profile(recording).save(tmp_path / "profile.json", peaks=PEAKS)
    rows = json.loads(path.read_text())["tables"]["roofline"]["rows"]
    assert any(row["fraction"] for row in rows)


def test_values_that_are_not_finite_are_null():
    row = dataclasses.replace(rows_of(1)[0], self_us=float("nan"), share=float("inf"))
    text = json_of({"ops": Table(OpRow, (row,))}, [], [])
    (values,) = json.loads(text)["tables"]["ops"]["rows"]
    assert (values["self_us"], values["share"], values["calls"]) == (None, None, row.calls)


def test_a_trace_says_how_many_events_it_leaves_out(recording, tmp_path, monkeypatch):
    path = save(tmp_path / "trace.json.gz", recording, failing)  # it needs no table
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
def test_an_old_file_stays_if_the_new_one_cannot_be_made(recording, tmp_path, name):
    (tmp_path / name).write_text("old")
    with pytest.raises(RuntimeError, match="no table"):
        save(tmp_path / name, recording, failing)
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
