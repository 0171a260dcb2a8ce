# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_stack.recipes.text import prepare, select


def test_nothing_found_says_what_to_pass(tmp_path):
    with pytest.raises(
        ValueError, match=r"matches pattern='\*\*/\*.rst', got 0 files .*: pass --text"
    ):
        select(tmp_path, pattern="**/*.rst")
    with pytest.raises(ValueError, match=r"must be a directory, got .*nowhere"):
        select(tmp_path / "nowhere", pattern="**/*")


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
