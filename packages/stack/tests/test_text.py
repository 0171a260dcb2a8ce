# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gzip

import pytest

from dovetail_stack.recipes.text import find, prepare, select, split


@pytest.fixture
def tree(tmp_path):
    for name in ("a.txt", "sub/b.txt", "sub/skipped/c.txt", ".git/d.txt", ".hidden.txt", "e.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_finds_what_matches_without_hidden_files_and_skipped_folders(tree):
    found = find(tree, pattern="**/*.txt", skip=["skipped"])
    assert found == [tree / "a.txt", tree / "sub/b.txt"]


def test_nothing_found_says_what_to_pass(tree):
    with pytest.raises(
        ValueError, match=r"matches pattern='\*\*/\*.rst', got 0 files .*: pass --text"
    ):
        find(tree, pattern="**/*.rst")
    with pytest.raises(ValueError, match=r"must be a directory, got .*nowhere"):
        find(tree / "nowhere", pattern="**/*")


FOREIGN = {
    "nul.txt": b"a\0b",
    "latin.txt": "café".encode("latin-1"),
    "cut.txt": "é".encode()[:1],
    "late.txt": b"a" * (1 << 21) + b"\xff",
    "zip.txt": b"\x1f\x8b\x08\0",
    "broken.txt.gz": gzip.compress(b"text " * 99)[:-9],
    "__pycache__/decodes.txt": b"text",
}


def test_files_without_text_are_skipped_and_counted(tmp_path):
    for name, content in {**FOREIGN, "a.txt": b"a", "b.txt.gz": gzip.compress(b"b")}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".hidden").write_bytes(b"text")
    found = select(tmp_path, pattern="**/*")
    assert repr(found) == f"Selection({found})"
    assert [path.name for path in found.files] == ["a.txt", "b.txt.gz"]
    assert found.skipped == (
        "broken.txt.gz",
        "cut.txt",
        "late.txt",
        "latin.txt",
        "nul.txt",
        "zip.txt",
    )
    assert found.counts == {
        "hidden": 1,
        "in __pycache__": 1,
        "damaged": 1,
        "not UTF-8": 3,
        "binary": 2,
    }
    # A resumed run sees the same files, whatever became of them.
    (tmp_path / "latin.txt").write_text("café")
    again = select(tmp_path, pattern="**/*", skipped=found.skipped)
    assert (again.files, again.skipped) == (found.files, found.skipped)


def test_adding_a_file_moves_no_other(tmp_path):
    files = [tmp_path / f"{i}.txt" for i in range(200)]
    train, held_out = split(files[:150], root=tmp_path, held_out=0.1)
    more_train, more_held_out = split(files, root=tmp_path, held_out=0.1)
    assert set(train) <= set(more_train)
    assert set(held_out) <= set(more_held_out)
    assert 8 <= len(held_out) <= 22  # binomial(150, 0.1): four deviations


def test_two_files_are_one_each_and_one_is_refused(tmp_path):
    for held_out in (1e-9, 0.5, 1 - 1e-9):
        train, held = split([tmp_path / "a", tmp_path / "b"], root=tmp_path, held_out=held_out)
        assert len(train) == len(held) == 1
    with pytest.raises(ValueError, match=r"needs at least 2 files, got 1"):
        split([tmp_path / "a"], root=tmp_path, held_out=0.5)
    with pytest.raises(ValueError, match=r"between 0 and 1, got held_out=1\.5"):
        split([tmp_path / "a", tmp_path / "b"], root=tmp_path, held_out=1.5)


def test_the_tokenizer_never_saw_the_held_out_text_and_a_second_call_writes_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("the the the the " * 50)
    (tmp_path / "b.txt").write_text("zebra zebra zebra " * 50)

    def call():
        return prepare([tmp_path / "a.txt"], [tmp_path / "b.txt"], tmp_path / "o", vocab_size=300)

    first = call()
    assert len(first.tokenizer.encode(["the"])[0].ids) < 3
    assert len(first.tokenizer.encode(["zebra"])[0].ids) == 5
    assert first.held_out.text_bytes == 900
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "o").rglob("*")}
    assert call().train.fingerprint == first.train.fingerprint
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "o").rglob("*")} == before
