# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools
import hashlib
import os
import shutil
import sys
import time

import pytest

from dovetail_data import Part
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


class Listing(_files.Listed):
    """A source whose records are the bytes of its files, read one at a time."""

    kind = "kind"

    def __init__(self, files):
        self.files = files
        self.during = lambda: None  # called before each byte

    def read_unchecked(self, part):
        with open(part.path, "rb") as stream:
            while byte := stream.read(1):
                self.during()
                yield {"byte": byte}


def listing(tree, pattern="**/*.txt"):
    return Listing(_files.find(tree, pattern))


def part_of(source, i):
    file = source.files[i]
    return Part(name=file.name, path=file.path, start=0, stop=file.bytes, bytes=file.bytes)


def test_the_digest_is_that_of_names_and_contents(tree, tmp_path):
    lines = [
        f"{n}\n{hashlib.sha256(c).hexdigest()}" for n, c in [("a/z.txt", b"ZZ"), ("b.txt", b"B")]
    ]
    expected = hashlib.sha256("\n".join(["kind", *lines]).encode()).hexdigest()
    assert listing(tree).fingerprint == expected
    others = hashlib.sha256("\n".join(["kind", lines[0]]).encode()).hexdigest()
    assert listing(tree).digest(without=["b.txt"]) == others
    shutil.copytree(tree, tmp_path / "copy")
    assert listing(tmp_path / "copy").fingerprint == expected
    (tree / "b.txt").rename(tree / "c.txt")
    assert listing(tree).fingerprint != expected


def rewrite(path, content):
    """Writes other contents of one size, and sets back the time of their change."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("age_s", [0, 3600])
@pytest.mark.parametrize("when", ["before", "during"])
def test_other_contents_of_one_size_are_a_change(tree, monkeypatch, age_s, when):
    """Of a file just written, whose times say nothing, and of one an hour old."""
    clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: clock() + age_s * 10**9)
    source = listing(tree)
    assert list(source.read(part_of(source, 1))) == [{"byte": b"B"}]
    fingerprint = source.fingerprint
    assert (source.contents[part_of(source, 1).path].settled is None) == (age_s == 0)
    assert list(source.read(part_of(source, 1))) == [{"byte": b"B"}]
    change = functools.partial(rewrite, tree / "b.txt", b"C")
    if when == "before":
        change()
    else:
        source.during = change
    message = r"must not change while it is read: got .*b\.txt with other contents than those of "
    with pytest.raises(ValueError, match=message):
        list(source.read(part_of(source, 1)))
    assert list(source.read(part_of(source, 0))) == [{"byte": b"Z"}] * 2
    assert source.fingerprint == fingerprint != listing(tree).fingerprint


def test_new_times_of_the_same_contents_are_no_change(tree, monkeypatch):
    clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: clock() + 3600 * 10**9)
    source = listing(tree)
    _ = source.fingerprint
    (tree / "b.txt").write_bytes(b"B")
    hashed = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *a: hashed.append(1) or digest(*a))
    for _ in range(3):
        assert list(source.read(part_of(source, 1))) == [{"byte": b"B"}]
    assert len(hashed) == 1  # then the new times are known


def test_a_long_part_is_checked_on_its_way(tree):
    (tree / "b.txt").write_bytes(b"B" * 3000)
    source = listing(tree)
    _ = source.fingerprint
    records = source.read(part_of(source, 1))
    for _ in range(1000):
        next(records)
    rewrite(tree / "b.txt", b"C" * 3000)
    for _ in range(24):
        next(records)
    with pytest.raises(ValueError, match=r"b\.txt with other contents than those"):
        next(records)


def test_a_file_that_changes_while_it_is_hashed_is_an_error(tree, monkeypatch):
    digest = hashlib.file_digest

    def changing(stream, name):
        if stream.name.endswith("b.txt"):
            (tree / "b.txt").write_bytes(b"CC")
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", changing)
    with pytest.raises(ValueError, match=r"got .*b\.txt, which another process writes\. Wait"):
        _ = listing(tree).fingerprint


def test_a_file_that_is_gone_is_a_change(tree):
    source = listing(tree)
    (tree / "b.txt").unlink()
    with pytest.raises(ValueError, match=r"got .*b\.txt with bytes=None, it had 1\. Make the sour"):
        list(source.read(part_of(source, 1)))


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
    message = r"must not change while it is read: got .*b\.txt with bytes=1, it had 2\. Make the"
    with pytest.raises(ValueError, match=message):
        _files.check_unchanged(str(tree / "b.txt"), 2)
