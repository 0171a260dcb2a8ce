# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import hashlib
import shutil
import sys

import pytest

from dovetail_data.sources import _files


@pytest.fixture
def tree(tmp_path):
    for name, content in {"b.txt": b"B", "a/z.txt": b"ZZ", "a/n.md": b"N"}.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    return tmp_path / "in"


def names(files):
    return [file.name for file in files]


def test_directories_files_and_sequences(tree):
    files = _files.find(tree, "**/*.txt")
    assert [(file.name, file.bytes) for file in files] == [("a/z.txt", 2), ("b.txt", 1)]
    assert names(_files.find(str(tree), "**/*")) == ["a/n.md", "a/z.txt", "b.txt"]
    assert names(_files.find(tree / "b.txt", "*.md")) == ["b.txt"]
    assert names(_files.find([tree / "b.txt", str(tree / "a" / "n.md")], "*")) == [
        "a/n.md",
        "b.txt",
    ]
    assert names(_files.find([tree / "a"], "*.txt")) == ["z.txt"]


def test_compressed_forms_are_found_on_request(tree):
    for name in ("c.txt.gz", "a/d.txt.bz2", "e.txt.xz", "f.txt.zst", "g.txt.zip", "h.md.gz"):
        (tree / name).write_bytes(b"?")
    assert names(_files.find(tree, "**/*.txt")) == ["a/z.txt", "b.txt"]
    files = names(_files.find(tree, "**/*.txt", compressed=True))
    assert files == ["a/d.txt.bz2", "a/z.txt", "b.txt", "c.txt.gz", "e.txt.xz", "f.txt.zst"]


def test_named_files_keep_the_order_given(tree):
    files = _files.named([tree / "b.txt", tree / "a" / "z.txt"])
    assert [(file.name, file.bytes) for file in files] == [("b.txt", 1), ("a/z.txt", 2)]


def test_the_digest_is_that_of_names_and_contents(tree, tmp_path):
    lines = [
        f"{n}\n{hashlib.sha256(c).hexdigest()}" for n, c in [("a/z.txt", b"ZZ"), ("b.txt", b"B")]
    ]
    expected = hashlib.sha256("\n".join(["kind", *lines]).encode()).hexdigest()
    assert _files.digest(_files.find(tree, "**/*.txt"), kind="kind") == expected
    shutil.copytree(tree, tmp_path / "copy")
    assert _files.digest(_files.find(tmp_path / "copy", "**/*.txt"), kind="kind") == expected
    (tree / "b.txt").rename(tree / "c.txt")
    assert _files.digest(_files.find(tree, "**/*.txt"), kind="kind") != expected


def test_nothing_found_is_an_error(tree):
    with pytest.raises(ValueError, match=r"at least one file: got none .*'\*\.rst'\. Give other"):
        _files.find(tree, "*.rst")
    with pytest.raises(ValueError, match=r"at least one file: got none"):
        _files.find([], "*")


def test_a_path_that_does_not_exist_is_an_error(tree):
    with pytest.raises(ValueError, match=r"must exist: got path='.*nowhere'\. Correct"):
        _files.find(tree / "nowhere", "*")


def test_a_file_given_twice_is_an_error(tree):
    message = r"each file once: got \['.*b\.txt', '.*b\.txt'\]\. Delete one of them, or give"
    with pytest.raises(ValueError, match=message):
        _files.find([tree, tree / "b.txt"], "*.txt")
    (tree / "b.txt.gz").write_bytes(b"?")
    message = r"each file once: got \['.*b\.txt(\.gz)?', '.*b\.txt(\.gz)?'\]\. Delete one of them"
    with pytest.raises(ValueError, match=message):
        _files.find(tree, "*.txt", compressed=True)
    assert names(_files.find(tree, "*.txt")) == ["b.txt"]


def test_a_package_that_a_file_needs_is_asked_for_when_it_is_found(tree, monkeypatch):
    (tree / "c.txt.zst").write_bytes(b"?")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert names(_files.find(tree, "**/*.txt*")) == ["a/z.txt", "b.txt", "c.txt.zst"]
    with pytest.raises(ImportError, match=r"pip install 'dovetail-data\[zstd\]'"):
        _files.find(tree, "**/*.txt", compressed=True)


def test_another_size_is_a_change(tree):
    _files.check_unchanged(str(tree / "b.txt"), 1)
    message = r"must not change while it is read: got .*b\.txt with 1 bytes, it had 2\. Make the"
    with pytest.raises(ValueError, match=message):
        _files.check_unchanged(str(tree / "b.txt"), 2)
