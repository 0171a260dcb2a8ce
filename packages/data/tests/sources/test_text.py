# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pickle
import shutil

import pytest

from dovetail_data import text


def contents(source):
    return [record["text"] for part in source.parts() for record in source.read(part)]


@pytest.fixture
def tree(tmp_path):
    for name, content in {"b.txt": b"B\r\n", "a/z.txt": b"\xef\xbb\xbfZ", "a/n.md": b"N"}.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    return tmp_path / "in"


def test_a_directory_is_searched_and_sorted(tree):
    source = text(tree)
    assert [part.name for part in source.parts()] == ["a/z.txt", "b.txt"]
    assert contents(source) == ["\ufeffZ", "B\r\n"]
    assert [part.bytes for part in source.parts()] == [4, 3]


def test_a_pattern_chooses(tree):
    assert contents(text(tree, pattern="**/*.md")) == ["N"]


def test_a_file_and_a_sequence(tree):
    assert contents(text(tree / "b.txt")) == ["B\r\n"]
    assert contents(text([tree / "b.txt", str(tree / "a" / "n.md")])) == ["N", "B\r\n"]


def test_the_same_files_elsewhere_are_the_same_source(tree, tmp_path):
    shutil.copytree(tree, tmp_path / "copy")
    assert text(tmp_path / "copy").fingerprint == text(tree).fingerprint
    assert pickle.loads(pickle.dumps(text(tree))).fingerprint == text(tree).fingerprint


def test_other_content_names_or_options_are_another_source(tree):
    seen = {text(tree).fingerprint, text(tree, errors="replace").fingerprint}
    (tree / "b.txt").write_bytes(b"C\r\n")
    seen.add(text(tree).fingerprint)
    (tree / "b.txt").rename(tree / "c.txt")
    seen.add(text(tree).fingerprint)
    assert len(seen) == 4


def test_a_file_that_is_not_utf8_is_named_with_its_offset(tree):
    (tree / "b.txt").write_bytes(b"caf\xe9!")
    message = r"must be UTF-8: got .*b\.txt with byte 0xe9 at offset 3\. .*errors=\"replace\""
    with pytest.raises(ValueError, match=message):
        contents(text(tree))
    assert contents(text(tree, errors="replace"))[1] == "caf\ufffd!"


def test_a_file_that_changed_since_is_an_error(tree):
    source = text(tree)
    (tree / "b.txt").write_bytes(b"BBBB")
    message = r"must not change while it is read: got .*b\.txt with 4 bytes, it had 3. Call text"
    with pytest.raises(ValueError, match=message):
        contents(source)


def test_nothing_found_is_an_error(tree):
    with pytest.raises(ValueError, match=r"at least one file: got none .*'\*\.rst'. Give other"):
        text(tree, pattern="*.rst")
    with pytest.raises(ValueError, match=r"at least one file: got none"):
        text([])


def test_a_path_that_does_not_exist_is_an_error(tree):
    with pytest.raises(ValueError, match=r"must exist: got path='.*nowhere'. Correct"):
        text(tree / "nowhere")
