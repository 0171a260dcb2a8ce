# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import pytest

from dovetail_data.corpus.ledger import LEDGER, open_ledger
from dovetail_data.damage import DamageError

IDENTITY = {"source": "s", "shard_bytes": 7}


def test_lines_come_back_in_order(tmp_path):
    with open_ledger(tmp_path, identity=IDENTITY) as ledger:
        ledger.append({"chunks": 1})
        ledger.append({"chunks": 5})
    with open_ledger(tmp_path, identity=IDENTITY) as ledger:
        assert ledger.lines == [{"chunks": 1}, {"chunks": 5}]


@pytest.mark.parametrize("cut", [1, 2, 9])
def test_a_torn_line_is_dropped_and_written_again(tmp_path, cut):
    for _ in range(2):
        with open_ledger(tmp_path, identity=IDENTITY) as ledger:
            while len(ledger.lines) < 2:
                ledger.append({"chunks": len(ledger.lines)})
        whole = (tmp_path / LEDGER).read_bytes()
        (tmp_path / LEDGER).write_bytes(whole[:-cut])
        with open_ledger(tmp_path, identity=IDENTITY) as ledger:
            assert ledger.lines == [{"chunks": 0}]
            ledger.append({"chunks": 1})
        assert (tmp_path / LEDGER).read_bytes() == whole


@pytest.mark.parametrize("kept", [0, 1, 10])
def test_a_torn_first_line_starts_anew(tmp_path, kept):
    with open_ledger(tmp_path, identity=IDENTITY):
        pass
    whole = (tmp_path / LEDGER).read_bytes()
    (tmp_path / LEDGER).write_bytes(whole[:kept])
    with open_ledger(tmp_path, identity=IDENTITY) as ledger:
        assert ledger.lines == []
    assert (tmp_path / LEDGER).read_bytes() == whole


def test_another_identity_is_an_error(tmp_path):
    with open_ledger(tmp_path, identity=IDENTITY):
        pass
    message = r"same source: got source='t', it holds 's'. Give another directory"
    with (
        pytest.raises(ValueError, match=message),
        open_ledger(tmp_path, identity=IDENTITY | {"source": "t"}),
    ):
        pass


@pytest.mark.thorough
def test_a_second_writer_is_an_error(tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from dovetail_data.corpus.ledger import open_ledger\n"
        f"with open_ledger(Path(sys.argv[1]), identity={IDENTITY}): pass"
    )
    with open_ledger(tmp_path, identity=IDENTITY):
        second = subprocess.run(
            [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
        )
    assert second.returncode == 1
    assert "RuntimeError: one process at a time" in second.stderr
    assert f"got directory={tmp_path}" in second.stderr
    assert "Wait for it" in second.stderr


def test_a_directory_with_other_files_is_an_error(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with (
        pytest.raises(ValueError, match=r"empty directory: got .*thesis\.tex.*Give another"),
        open_ledger(tmp_path, identity=IDENTITY),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_ledger_is_an_error(tmp_path):
    (tmp_path / LEDGER).write_bytes(b'{"source": \x00\n{}\n')
    with (
        pytest.raises(
            ValueError,
            match=r"must be as it was written: got .*ledger.jsonl: .*Delete the directory",
        ),
        open_ledger(tmp_path, identity=IDENTITY),
    ):
        pass


def test_a_flip_of_any_bit_is_found_or_drops_the_last_line(tmp_path):
    lines = [{"chunks": i, "shard": {"documents": 10 * i}} for i in range(3)]
    with open_ledger(tmp_path, identity=IDENTITY) as ledger:
        for line in lines:
            ledger.append(line)
    whole = (tmp_path / LEDGER).read_bytes()
    for bit in [*range(0, 8 * len(whole), 61), *range(8 * len(whole) - 8, 8 * len(whole))]:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / LEDGER).write_bytes(damaged)
        if bit >= 8 * len(whole) - 8:  # no newline at the end: a torn line
            with open_ledger(tmp_path, identity=IDENTITY) as ledger:
                assert ledger.lines == lines[:2]
            continue
        with (
            pytest.raises(DamageError, match=f"got {tmp_path / LEDGER}: "),
            open_ledger(tmp_path, identity=IDENTITY),
        ):
            pass


def test_lines_of_another_order_are_found(tmp_path):
    with open_ledger(tmp_path, identity=IDENTITY) as ledger:
        for i in range(3):
            ledger.append({"chunks": i})
    first, *others = (tmp_path / LEDGER).read_bytes().splitlines(keepends=True)
    for changed in (others[::-1], others[1:], [*others, others[-1]]):
        (tmp_path / LEDGER).write_bytes(b"".join([first, *changed]))
        with (
            pytest.raises(DamageError, match=r"without its sha256"),
            open_ledger(tmp_path, identity=IDENTITY),
        ):
            pass


def test_a_ledger_of_an_older_version_is_continued_with_a_warning(tmp_path, caplog):
    names = ("source", "encoder", "shard_bytes", "parts", "chunks", "cut")
    identity = dict.fromkeys(names, 1)
    older = b"".join(json.dumps(line).encode() + b"\n" for line in (identity, {"chunks": 1}))
    (tmp_path / LEDGER).write_bytes(older)
    with open_ledger(tmp_path, identity=identity) as ledger:
        assert ledger.lines == [{"chunks": 1}]
        ledger.append({"chunks": 2})
    assert (tmp_path / LEDGER).read_bytes() == older + b'{"chunks": 2}\n'
    (record,) = caplog.records
    assert f"should have a digest in each line: got {tmp_path / LEDGER}" in record.getMessage()
