# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Assets are checked at the export, and a save stores what they were then."""

import hashlib
import os

import numpy as np
import pytest

from dovetail_serve import Tensor, export, verify
from dovetail_serve.exporting.assets import read_assets, write_assets


def bundle(assets):
    return export(
        lambda p, *, x: {"y": x * p},
        np.float32(2),
        inputs={"x": Tensor(("batch", 3), "float32")},
        example={"x": np.random.default_rng(0).normal(size=(2, 3)).astype("float32")},
        platforms=["cpu"],
        batch_sizes=(1,),
        assets=assets,
    )


def test_files_and_bytes_are_written_with_their_digests(tmp_path):
    (tmp_path / "vocabulary").write_bytes(b"a b c")
    assets = read_assets({"words": str(tmp_path / "vocabulary"), "labels": b"cat dog"})
    (tmp_path / "out").mkdir()
    entries = write_assets(tmp_path / "out", assets)
    for name, content in (("words", b"a b c"), ("labels", b"cat dog")):
        assert (tmp_path / "out/assets" / name).read_bytes() == content
        assert entries[f"assets/{name}"].bytes == len(content)
        assert entries[f"assets/{name}"].sha256 == hashlib.sha256(content).hexdigest()


def test_without_assets_there_is_no_directory(tmp_path):
    assert write_assets(tmp_path, read_assets({})) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "source", "error", "message"),
    [
        *(
            (name, b"x", ValueError, r"name of an asset must have letters.*, got '.*'; write")
            for name in ("../x", "a/b", ".hidden", "")
        ),
        ("t", bytearray(b"x"), TypeError, r"got 't' of type bytearray; write .*bytes\(value\)"),
        ("t", None, TypeError, r"got 't' of type NoneType; write"),
        ("t", "cat\ndog", FileNotFoundError, r"files, got 't': .*, which is no file; give"),
        ("t", os.curdir, FileNotFoundError, r"files, got 't': .*, which is a directory; give"),
    ],
)
def test_what_is_no_file_is_refused_before_any_run(name, source, error, message):
    with pytest.raises(error, match=message):
        read_assets({name: source})


def test_an_export_refuses_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="which is no file; give the path"):
        bundle({"tokenizer.json": tmp_path / "absent"})


def test_a_relative_path_is_of_the_directory_at_the_export(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "words").write_bytes(b"right")
    (tmp_path / "other/words").write_bytes(b"wrong")
    monkeypatch.chdir(tmp_path)
    exported = bundle({"words": "words"})
    monkeypatch.chdir(tmp_path / "other")
    exported.save(tmp_path / "1")
    assert (tmp_path / "1/assets/words").read_bytes() == b"right"


def test_a_file_that_changes_after_the_export_is_not_saved(tmp_path):
    words = tmp_path / "words"
    words.write_bytes(b"a b c")
    exported = bundle({"words": words})
    words.write_bytes(b"a b d")
    with pytest.raises(RuntimeError, match=r"must not change .* of 'words' from .*; call export"):
        exported.save(tmp_path / "1")
    assert not (tmp_path / "1").exists()
    words.write_bytes(b"a b c")
    exported.save(tmp_path / "1")
    verify(tmp_path / "1")
