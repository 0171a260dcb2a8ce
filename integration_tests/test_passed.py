# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/passed.py: the records that count, and the reasons why none does."""

import datetime
import json
import pathlib
import subprocess

import pytest

import passed
import reach

pytestmark = pytest.mark.once

KEYS = {"a": "key of a", "b": "key of b"}


def git(root, *line):
    options = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")
    command = ["git", "-C", str(root), *options, *line]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def root(tmp_path):
    """A repository of two commits."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", str(folder))
    (folder / ".gitignore").write_text("build/\n")
    for text in ("first\n", "second\n"):
        (folder / "file").write_text(text)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", text)
    return folder


def lines(root):
    return (root / reach.RECORD).read_text().splitlines()


def rewrite(root, **values):
    """Gives all records other values."""
    records = [json.loads(line) | values for line in lines(root)]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (root / reach.RECORD).write_text(text)


def days_ago(days):
    return (passed.today() - datetime.timedelta(days)).isoformat()


@pytest.fixture
def whole(root):
    """The same after a whole pass, which is committed."""
    passed.add(root, {"a": 1.5}, KEYS)
    passed.add(root, {"b": 2.0}, KEYS)
    assert passed.close(root, KEYS)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Record")
    return root


def test_what_passed_counts_while_its_key_is_the_same(whole):
    known = passed.standing(whole, KEYS | {"b": "other"})
    assert known.reason == ""
    assert known.passed.keys() == {"a"}
    record = known.passed["a"]
    assert record.commit == git(whole, "rev-parse", "--short=12", "HEAD~1")
    assert (record.date, record.cpu_s) == (passed.today().isoformat(), 1.5)
    assert known.whole.days(passed.today()) == 0
    assert known.costs["b"] == 2.0
    known = passed.standing(whole, KEYS, everything=True)
    assert (known.passed, known.reason) == ({}, "it was asked for")


def test_records_that_a_run_has_just_added_count(root):
    known = passed.standing(root, KEYS)
    assert (known.passed, known.reason) == ({}, f"{reach.RECORD} is missing or empty")
    passed.add(root, {"a": 1.0}, KEYS)  # the file is new, and not committed
    known = passed.standing(root, KEYS)
    assert known.passed.keys() == {"a"}
    assert "no whole pass is within" in known.reason
    assert not passed.close(root, KEYS)
    rewrite(root, date=days_ago(2))  # without a whole pass only the last day counts
    assert passed.standing(root, KEYS).passed == {}


@pytest.mark.parametrize("days, counts", [(13, True), (14, True), (15, False)])
def test_a_record_counts_for_14_days(whole, days, counts):
    rewrite(whole, date=days_ago(days))
    known = passed.standing(whole, KEYS)
    assert (known.passed.keys() == KEYS.keys()) == counts
    assert (known.whole is not None) == counts
    rewrite(whole, commit="0123456789ab")  # of another history
    assert passed.standing(whole, KEYS).passed == {}


def test_a_dirty_tree_and_a_shallow_clone_have_no_records(whole, tmp_path):
    (whole / "new").touch()
    known = passed.standing(whole, KEYS)
    assert known.passed == {}
    assert "the tree is dirty" in known.reason
    assert "?? new" in known.reason
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{whole}", str(clone))
    known = passed.standing(clone, KEYS)
    assert known.passed == {}
    assert "the clone is shallow" in known.reason


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"check": "a"}', "<<<<<<< HEAD", "null", "\udcff", ""]
)
def test_a_damaged_file_has_no_records_and_is_mended_by_the_next_pass(whole, damage):
    file = whole / reach.RECORD
    with file.open("a", encoding="utf-8", errors="surrogateescape") as opened:
        opened.write(f"{damage}\n")
    known = passed.standing(whole, KEYS)
    assert known.passed == {}
    assert f"line 4 of {reach.RECORD} is no record" in known.reason
    assert passed.close(whole, KEYS)
    assert passed.standing(whole, KEYS).passed.keys() == KEYS.keys()


def test_trimming_leaves_the_last_record_of_each_check(whole):
    passed.add(whole, {"a": 9.0}, {"a": "later key"})
    passed.trim(whole)
    records = [json.loads(line) for line in lines(whole)]
    assert [r["check"] for r in records] == ["a", "b", passed.WHOLE]
    assert (records[0]["key"], records[0]["cpu_s"]) == ("later key", 9.0)
    rewrite(whole, date=days_ago(15))
    passed.trim(whole)
    assert lines(whole) == []


def test_a_kill_during_the_trimming_leaves_a_clean_tree_and_all_records(whole, monkeypatch):
    def killed(self, target):
        raise KeyboardInterrupt

    before = lines(whole)
    monkeypatch.setattr(pathlib.Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        passed.trim(whole)
    assert lines(whole) == before
    assert passed.unusable(whole) == ""
