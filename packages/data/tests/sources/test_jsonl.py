# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import jsonl

module = sys.modules["dovetail_data.sources.jsonl"]  # the attribute of that name is the function


def contents(source):
    return [record["text"] for part in source.parts() for record in source.read(part)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("jsonl")


@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=8),
    part_bytes=st.integers(1, 60),
    last_newline=st.booleans(),
    blank=st.booleans(),
    ascii_only=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_each_line_is_read_once_wherever_parts_are_cut(
    directory, texts, part_bytes, last_newline, blank, ascii_only
):
    lines = [json.dumps({"id": 1, "text": text}, ensure_ascii=ascii_only) for text in texts]
    content = ("\n \r\n" if blank else "\n").join(lines) + "\n" * last_newline
    (directory / "any.jsonl").write_bytes(content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PART_BYTES", part_bytes)
        source = jsonl(directory / "any.jsonl")
        assert contents(source) == texts
        assert sum(part.bytes for part in source.parts()) == len(content.encode())


def test_files_of_a_directory_and_another_field(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"body": "2"}\n{"body": "3"}')
    (tmp_path / "a.jsonl").write_text('{"body": "1"}\n')
    source = jsonl(tmp_path, field="body")
    assert contents(source) == ["1", "2", "3"]
    assert [part.name for part in source.parts()] == ["a.jsonl[0:14]", "b.jsonl[0:27]"]
    assert source.fingerprint != jsonl(tmp_path, field="text").fingerprint


@pytest.mark.parametrize(
    "line, message",
    [
        (b'{"text": ', r"must be JSON in UTF-8: got .*x\.jsonl:3: .*Mend the line"),
        (b'{"text": "\xff"}', r"must be JSON in UTF-8: got .*x\.jsonl:3: .*Mend the line"),
        (b'{"body": "a"}', r"field='text': got .*x\.jsonl:3 with \['body'\]. Pass field="),
        (b'{"text": 7}', r"field='text': got .*x\.jsonl:3 with \['text'\]. Pass field="),
        (b'["text"]', r"field='text': got .*x\.jsonl:3 with list. Pass field="),
        (b'{"text": "\\ud800"}', r"lone surrogates: got .*x\.jsonl:3. Mend"),
    ],
)
@pytest.mark.parametrize("part_bytes", [7, 1 << 22])
def test_a_bad_line_is_named(tmp_path, monkeypatch, line, message, part_bytes):
    monkeypatch.setattr(module, "_PART_BYTES", part_bytes)
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "b"}\n')
    with pytest.raises(ValueError, match=message):
        contents(jsonl(tmp_path / "x.jsonl"))


def test_an_escaped_pair_of_surrogates_is_a_character(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "\\ud83d\\ude00"}')
    assert contents(jsonl(tmp_path / "x.jsonl")) == ["\U0001f600"]


def test_a_file_that_was_cut_since_is_an_error(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    source = jsonl(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    message = r"must not change while it is read: got .*x\.jsonl with 14 bytes, it had 28 or more"
    with pytest.raises(ValueError, match=message):
        contents(source)
