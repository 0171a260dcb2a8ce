# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/passed.py: the records that count, and the reasons why none does."""

import datetime
import json
import pathlib

import pytest

import passed
import reach

pytestmark = pytest.mark.once

KEYS = {"a": "key of a", "b": "key of b"}


@pytest.fixture
def root(tmp_path, git, commit):
    """A repository of one commit."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text("build/\n")
    commit(folder, "First")
    return folder


@pytest.fixture
def whole(root, commit):
    """The same after a whole pass, which is committed."""
    passed.add(root, {"a": 1.5}, KEYS)
    passed.add(root, {"b": 2.0}, KEYS)
    assert passed.close(root, KEYS)
    commit(root, "Record")
    return root


def records(root):
    return [json.loads(line) for line in (root / reach.RECORD).read_text().splitlines()]


def rewrite(root, days=0, **values):
    """Gives all records an age, and other values."""
    values["date"] = (passed.today() - datetime.timedelta(days)).isoformat()
    lines = [json.dumps(record | values) for record in records(root)]
    (root / reach.RECORD).write_text("\n".join([*lines, ""]))


def standing(root, reason, **options):
    """The checks that count, after a look at why no other does."""
    known = passed.standing(root, KEYS, **options)
    assert bool(reason) == bool(known.reason)
    assert reason in known.reason
    return [*known.passed]


def test_what_passed_counts_while_its_key_is_the_same(whole, git):
    known = passed.standing(whole, KEYS | {"b": "other"})
    ((check, record),) = known.passed.items()
    assert record.commit == git(whole, "rev-parse", "--short=12", "HEAD~1")
    assert (check, record.date, record.cpu_s) == ("a", passed.today().isoformat(), 1.5)
    assert (known.whole.days(passed.today()), known.costs["b"], known.reason) == (0, 2.0, "")
    assert standing(whole, "it was asked for", everything=True) == []


def test_records_that_a_run_has_just_added_count(root):
    assert standing(root, f"{reach.RECORD} is missing or empty") == []
    passed.add(root, {"a": 1.0}, KEYS)  # the file is new, and not committed
    assert not passed.close(root, KEYS)
    for days, counting in {0: ["a"], 2: []}.items():  # without a whole pass only the last day
        rewrite(root, days)
        assert standing(root, "no whole pass is within") == counting


def test_a_record_of_this_history_counts_for_14_days(whole):
    for days, counting in {14: ["a", "b"], 15: []}.items():
        rewrite(whole, days)
        known = passed.standing(whole, KEYS)
        assert ([*known.passed], bool(known.whole)) == (counting, bool(counting))
    rewrite(whole, commit="0123456789ab")
    assert passed.standing(whole, KEYS).passed == {}


def test_a_dirty_tree_and_a_shallow_clone_have_no_records(whole, tmp_path, git):
    (whole / "new").touch()
    assert standing(whole, "the tree is dirty, so its files are those of no commit: ?? new") == []
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{whole}", str(clone))
    assert standing(clone, "the clone is shallow") == []


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"check": "a"}', b"null", b"\xff", b""])
def test_a_damaged_file_has_no_records_and_is_mended_by_the_next_pass(whole, damage):
    with (whole / reach.RECORD).open("ab") as opened:
        opened.write(damage + b"\n")
    assert standing(whole, f"line 4 of {reach.RECORD} is no record") == []
    assert passed.close(whole, KEYS)
    assert standing(whole, "") == ["a", "b"]


def test_trimming_leaves_the_last_record_of_each_check_and_may_be_killed(whole, monkeypatch):
    before = records(whole)
    with monkeypatch.context() as change:
        change.delattr(pathlib.Path, "replace")  # the end, before the new file is in place
        with pytest.raises(AttributeError):
            passed.trim(whole)
    assert (records(whole), passed.unusable(whole)) == (before, "")
    passed.add(whole, {"a": 9.0}, {"a": "later key"})
    passed.trim(whole)
    first, *others = records(whole)
    assert (first["check"], first["key"], first["cpu_s"]) == ("a", "later key", 9.0)
    assert [record["check"] for record in others] == ["b", passed.WHOLE]
    rewrite(whole, days=15)
    passed.trim(whole)
    assert records(whole) == []
