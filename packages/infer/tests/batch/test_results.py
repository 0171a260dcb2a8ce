# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import errno
import fcntl
import json
import os

import pytest

from dovetail_infer import Sampling
from dovetail_infer.batch import RefusedError, Request, Results

REQUESTS = [Request(index=i, source={}, sampling=Sampling(), digest=f"d{i}") for i in range(7)]
VALUES = [{"prompt": "aé😀\n"[i % 4], "tokens": list(range(i))} for i in range(7)]


def fill(file):
    """Writes what is missing, two results at a time."""
    with Results(file, REQUESTS) as results:
        missing = [request.index for request in results.missing]
        for start in range(0, len(missing), 2):
            results.write({i: VALUES[i] for i in missing[start : start + 2]})
    return missing


def test_results_are_lines_with_index_and_digest(tmp_path):
    file = tmp_path / "out.jsonl"
    assert fill(file) == list(range(7))
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert lines == [{"index": i, **VALUES[i], "digest": f"d{i}"} for i in range(7)]
    assert fill(file) == []


@pytest.mark.thorough
def test_a_writer_killed_at_any_byte_leaves_a_file_that_resumes_to_the_same(tmp_path):
    file = tmp_path / "out.jsonl"
    fill(file)
    whole = file.read_bytes()
    for end in range(len(whole)):
        file.write_bytes(whole[:end])
        assert len(fill(file)) == 7 - whole[:end].count(b"\n")
        assert file.read_bytes() == whole


def test_a_deleted_line_is_written_again(tmp_path):
    file = tmp_path / "out.jsonl"
    fill(file)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2] + lines[3:]))
    assert fill(file) == [2]
    assert file.read_bytes() == b"".join([*lines[:2], *lines[3:], lines[2]])


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"prompt": "mine"}\n', "got no result in line 1 of"),
        ('{"prompt": "mine"}', "got no result in line 1 of"),
        ("a text of mine", "got no result in line 1 of"),
        ('{"index": 0, "digest": "d0"}\nnoise\n', "got no result in line 2"),
        ('{"index": 0, "digest": "d0"}\n[0]\n', "got no result in line 2"),
        ('{"index": 0, "digest": "d0"}\n\0\0\0', "got no result in line 2"),
        ('{"index": 9, "digest": "d9"}\n', "got index=9 for 7 prompts in line 1"),
        ('{"index": [0], "digest": "d0"}\n', r"got index=\[0\] for 7 prompts in line 1"),
        ('{"index": 1, "digest": "d0"}\n', "got a result of index=1 for another prompt, other"),
        ('{"index": 1, "digest": "d1"}\n' * 2, "got a second result of index=1 in line 2"),
    ],
)
def test_another_file_is_refused_and_stays_as_it_is(tmp_path, content, message):
    file = tmp_path / "out.jsonl"
    file.write_text(content)
    with pytest.raises(RefusedError, match=message) as refused, Results(file, REQUESTS):
        pytest.fail("it was taken")
    assert "results of the same prompts, options and weights alone" in str(refused.value)
    assert "name another out=, or delete the line" in str(refused.value)
    assert refused.value.exit_code == 3
    assert file.read_text() == content


def test_a_second_writer_is_refused(tmp_path):
    file = tmp_path / "out.jsonl"
    with Results(file, REQUESTS) as results:
        with pytest.raises(
            RefusedError, match=r"must have one writer, got .*: wait for .* another out="
        ):
            fill(file)
        results.write({0: VALUES[0]})
    assert fill(file) == list(range(1, 7))


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    file = tmp_path / "out.jsonl"
    with Results(file, REQUESTS) as results:
        results.write({0: VALUES[0]})
        whole = file.read_bytes()

        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            results.write({1: VALUES[1], 2: VALUES[2]})
        monkeypatch.undo()
        assert file.read_bytes() == whole
        assert results.done == {0}
        results.write({1: VALUES[1]})
    assert fill(file) == [2, 3, 4, 5, 6]


def test_the_lock_ends_with_the_block(tmp_path):
    file = tmp_path / "out.jsonl"
    fill(file)
    with file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
