# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import hashlib
import subprocess

import pytest

from dovetail_checkpoint import seal


@pytest.fixture
def sealed(tmp_path):
    (tmp_path / "item" / "d").mkdir(parents=True)
    (tmp_path / "item" / "d" / "data").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "item" / "empty").write_bytes(b"")
    (tmp_path / "_METADATA").write_text("{}")
    seal.write(tmp_path)
    return tmp_path


def wheres(directory):
    return [problem.where for problem in seal.check(directory)]


def test_the_seal_is_what_sha256sum_reads(sealed):
    lines = (sealed / "SHA256SUMS").read_text().splitlines()
    want = hashlib.sha256(b"{}").hexdigest()
    assert lines[0] == f"{want}  _METADATA"
    assert [line[66:] for line in lines] == ["_METADATA", "item/d/data", "item/empty"]
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=sealed, check=True)


def test_an_intact_step_has_no_problem(sealed):
    assert seal.exists(sealed)
    assert seal.check(sealed) == []


def test_no_seal_is_no_problem(tmp_path):
    assert not seal.exists(tmp_path)
    assert seal.check(tmp_path) == []


def test_the_changed_file_is_named(sealed):
    (sealed / "item" / "empty").write_bytes(b"x")
    assert wheres(sealed) == ["item/empty"]
    assert "the seal says e3b0c44298fc" in seal.check(sealed)[0].reason  # sha256 of nothing


def test_missing_and_added_files_are_named(sealed):
    (sealed / "_METADATA").rename(sealed / "other")
    assert wheres(sealed) == ["other", "_METADATA"]


@pytest.mark.parametrize("text", ["", "nothing", "0" * 64 + "  cut", "0" * 64 + " *b\n"])
def test_a_damaged_seal_is_the_problem(sealed, text):
    (sealed / "SHA256SUMS").write_text(text)
    assert wheres(sealed) == ["SHA256SUMS"]


def test_a_seal_cut_at_a_line_is_found(sealed):
    text = (sealed / "SHA256SUMS").read_text()
    (sealed / "SHA256SUMS").write_text(text[: text.index("\n") + 1])
    assert wheres(sealed) == ["item/d/data", "item/empty"]


def test_processes_share_the_lines(sealed):
    for name in ("_METADATA", "item/d/data", "item/empty"):
        (sealed / name).write_bytes(b"changed")
    shares = [[p.where for p in seal.check(sealed, part=i, parts=2)] for i in range(2)]
    assert shares == [["_METADATA", "item/empty"], ["item/d/data"]]


def test_a_half_written_seal_is_no_seal(sealed):
    (sealed / "SHA256SUMS").rename(sealed / "SHA256SUMS.partial")
    assert not seal.exists(sealed)
    seal.write(sealed)
    assert seal.check(sealed) == []
