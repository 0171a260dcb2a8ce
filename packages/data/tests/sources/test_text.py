# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import bz2
import gzip
import inspect
import os

import pytest

from dovetail_data.sources.source import Corrupt, records
from dovetail_data.sources.text import text


def contents(source):
    return [record["text"] for record in records(source)]


@pytest.fixture
def tree(tmp_path):
    for name, content in {"b.txt": b"B\r\n", "a/z.txt": b"\xef\xbb\xbfZ", "a/n.md": b"N"}.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    return tmp_path / "in"


def test_a_file_is_a_record_with_its_line_ends_and_mark(tree):
    source = text(tree)
    assert [input_part.name for input_part in source.parts()] == ["a/z.txt", "b.txt"]
    assert contents(source) == ["\ufeffZ", "B\r\n"]
    assert [input_part.bytes for input_part in source.parts()] == [4, 3]
    assert [source.locate(input_part, 0) for input_part in source.parts()] == ["a/z.txt", "b.txt"]


def test_compressed_files_are_found_beside_plain_ones(tree):
    (tree / "a" / "c.txt.gz").write_bytes(gzip.compress(b"C1\n") + gzip.compress(b"C2\n"))
    (tree / "d.md.bz2").write_bytes(bz2.compress(b"D"))
    assert contents(text(tree)) == ["C1\nC2\n", "\ufeffZ", "B\r\n"]
    assert contents(text(tree, pattern="**/*.md")) == ["N", "D"]


def test_errors_are_part_of_the_fingerprint(tree):
    assert text(tree).fingerprint != text(tree, errors="replace").fingerprint


def test_a_file_that_is_not_utf8_is_corrupt(tree):
    (tree / "b.txt").write_bytes(b"caf\xe9!")
    source = text(tree)
    first, second = (list(source.read(input_part)) for input_part in source.parts())
    assert first == [{"text": "\ufeffZ"}]
    assert second == [
        Corrupt(
            "a text file must be UTF-8: got byte 0xe9 at offset 3. Convert the file, leave it out "
            'of `paths`, or pass errors="replace".'
        )
    ]
    assert contents(text(tree, errors="replace"))[1] == "caf\ufffd!"


@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_half_a_document_is_not_given(tmp_path, errors):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one two three\n" * 50)[:-4])
    (tmp_path / "b.txt").write_bytes(gzip.compress(b"not named so"))
    (tmp_path / "c.txt.gz").write_bytes(b"not packed")
    (tmp_path / "d.txt").write_bytes(b"")
    source = text(tmp_path, errors=errors)
    read = [list(source.read(input_part)) for input_part in source.parts()]
    assert [len(items) for items in read] == [1, 1, 1, 1]
    assert "must be whole: got one with its end missing" in read[0][0].error
    assert "must have the suffix of its format: got 'b.txt'" in read[1][0].error
    assert "must begin as that format does: got 'c.txt.gz'" in read[2][0].error
    assert read[3] == [{"text": ""}]


def test_a_file_that_changed_since_is_an_error(tree):
    (tree / "c.txt.gz").write_bytes(gzip.compress(b"C" * 99))
    source = text(tree)
    _, plain, packed = source.parts()
    os.truncate(tree / "c.txt.gz", packed.bytes - 2)
    (tree / "b.txt").write_bytes(b"BBBB")
    for input_part, now in ((plain, 4), (packed, packed.bytes - 2)):
        message = (
            rf"must not change while it is read: got .*{input_part.name} with bytes={now}, it had "
            rf"{input_part.bytes}\. Make the source again\."
        )
        with pytest.raises(ValueError, match=message):
            list(source.read(input_part))


def test_another_way_to_take_errors_is_refused(tree):
    message = r"errors must be one of \['strict', 'replace'\]: got errors='ignore'. Pass errors=\"r"
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(text)(tree, errors="ignore")  # without the check of types, as users call it
