# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_runs import find


@pytest.fixture
def folder(written, tmp_path):
    """Two runs, a damaged one, a folder that is none, and a file."""
    written("b", [{"step": 4, "loss": 2.0}]).tag("sweep", "best")
    written("a").tag("sweep")
    written("bad")
    (tmp_path / "bad" / "run.json").write_text("{")
    (tmp_path / "data").mkdir()
    (tmp_path / "readme.txt").touch()
    return tmp_path


def test_a_directory_has_runs_in_order_and_names_the_rest(folder):
    found = find(folder)
    assert list(found.runs) == list(found.summaries) == ["a", "b"]
    assert found.runs["b"].metrics.curve("loss").last() == (4, 2.0)
    assert (found.summaries["b"].step, found.summaries["b"].mean_loss) == (5, 2.0)
    assert list(found.damaged) == ["bad"]
    assert "restore it, or begin a new run" in found.damaged["bad"]
    assert found.foreign == ["data"]
    assert repr(found) == "Found(a, b; 1 damaged)"


@pytest.mark.parametrize(
    "tags, names", [(["sweep"], ["a", "b"]), (["best", "sweep"], ["b"]), (["other"], [])]
)
def test_runs_must_have_all_the_tags(folder, tags, names):
    found = find(str(folder), tags=tags)
    assert list(found.runs) == names
    assert (list(found.damaged), found.foreign) == (["bad"], ["data"])


def test_a_run_is_found_alone_also_as_the_current_directory(folder, monkeypatch):
    assert list(find(folder / "b").runs) == ["b"]
    monkeypatch.chdir(folder / "b")
    assert list(find(".").runs) == ["b"]


def test_an_empty_directory_has_nothing(tmp_path):
    found = find(tmp_path)
    assert (found.runs, found.damaged, found.foreign) == ({}, {}, [])
    assert repr(found) == "Found(no runs; 0 damaged)"


@pytest.mark.parametrize(
    "name, seen", [("none", "which does not exist"), ("readme.txt", "which is a file")]
)
def test_what_is_no_directory_is_refused(folder, name, seen):
    with pytest.raises(ValueError, match=f"runs lie in a directory, got .*{name}', {seen}: name"):
        find(folder / name)


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b'{"settings": 1}', b""])
def test_one_damaged_run_hides_no_other(folder, content):
    (folder / "bad" / "run.json").write_bytes(content)
    found = find(folder)
    assert (list(found.runs), list(found.damaged)) == (["a", "b"], ["bad"])


def test_damaged_lines_leave_a_run_in_the_list(folder):
    for name in ("metrics.jsonl", "launches.jsonl", "notes.jsonl"):
        (folder / "a" / name).write_bytes(b"\xff\n[[[[\n7\n" + b"[" * 100_000 + b"\n")
    found = find(folder)
    assert list(found.runs) == ["a", "b"]
    assert len(found.runs["a"].damage) == 12
