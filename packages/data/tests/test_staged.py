# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Staged files and the functions that workers call, in this process, without Ray."""

import dataclasses
import errno
import tracemalloc
from pathlib import Path

import pytest

from dovetail_data import Bytes, DamageError, Text, jsonl
from dovetail_data.corpus.ledger import LEDGER
from dovetail_data.corpus.shard import Encoded, Shard
from dovetail_data.record import Codec
from dovetail_data.writing import staged as _staged
from dovetail_data.writing.workers import Job, cut, tasks

LINES = ['{"text": "né"}', '{"text": ""}', '{"text": 1}', '{"text": "yes\\nno"}', "{"]
NAME = "00000000-000000"


class Refusing(Text):
    """Encodes nothing: the file of an earlier run must do."""

    def __call__(self, records):
        raise AssertionError("encoded again")


def job_of(path: Path, encoder: Text) -> Job:
    return Job(source=jsonl(path), encoder=encoder, codec=Codec(encoder.layout))


@pytest.fixture
def place(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / LEDGER).touch()
    return _staged.begin(tmp_path / "c", {"source": "1"})


@pytest.fixture
def work(tmp_path):
    """(job, task) of one file."""
    (tmp_path / "x.jsonl").write_text("\n".join(LINES))
    job = job_of(tmp_path / "x.jsonl", Text(Bytes()))
    (task,) = tasks(job.source, cut(job.source.parts()), done=0, slices=0)
    return job, task


def test_a_staged_file_holds_what_was_encoded(work, place):
    job, task = work
    counts = _staged.encode(job, task, place=place, name=NAME)
    encoded = job.encode(task)
    assert _staged.read(place.staging / NAME) == encoded
    assert (counts.documents, counts.tokens, counts.dropped) == (2, 13, 1)
    assert counts.bytes == sum(map(len, encoded.records))
    assert [where for where, _ in counts.corrupt] == ["x.jsonl:3", "x.jsonl:5"]
    assert counts.damaged == {0}
    assert [path.name for path in place.staging.iterdir()] == [NAME]


def test_a_task_without_documents_has_a_file_too(place):
    empty = Encoded(dropped=3)
    _staged._write(place.staging / NAME, empty)
    assert _staged.read(place.staging / NAME) == empty


def test_a_finished_task_is_not_encoded_again(work, place, tmp_path):
    job, task = work
    first = _staged.encode(job, task, place=place, name=NAME)
    refusing = dataclasses.replace(job, encoder=Refusing(Bytes()))
    assert _staged.encode(refusing, task, place=place, name=NAME) == first
    with pytest.raises(AssertionError, match="encoded again"):
        _staged.encode(refusing, task, place=place, name="00000001-000000")


@pytest.mark.parametrize("flaw", ["cut", "empty", "flip the head", "flip a record"])
def test_a_torn_or_changed_file_is_not_taken_for_whole(work, place, flaw):
    job, task = work
    first = _staged.encode(job, task, place=place, name=NAME)
    path = place.staging / NAME
    whole = path.read_bytes()
    at = {"flip the head": 70, "flip a record": len(whole) - 1}.get(flaw, 0)
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    path.write_bytes({"cut": whole[:-1], "empty": b""}.get(flaw, flipped))
    with pytest.raises(DamageError, match=r"must be as it was written: got .*sha256. Call write"):
        _staged.assemble([NAME], place=place, number=0)
    assert sorted(path.name for path in place.directory.iterdir()) == [LEDGER, "staged"]
    assert _staged.encode(job, task, place=place, name=NAME) == first
    assert path.read_bytes() == whole


def test_a_shard_of_staged_files_has_the_bytes_of_one_process(work, place, tmp_path):
    job, task = work
    names = [NAME, "00000001-000000"]
    for name in names:
        _staged.encode(job, task, place=place, name=name)
    entry = _staged.assemble(names, place=place, number=7)
    (tmp_path / "one").mkdir()
    shard = Shard(tmp_path / "one", 7)
    for _ in names:
        shard.add(job.encode(task))
    assert entry == shard.close()
    for path in (tmp_path / "one").iterdir():
        assert (place.directory / path.name).read_bytes() == path.read_bytes()


@pytest.mark.thorough
def test_a_shard_takes_the_memory_of_one_task(place):
    names = [f"{i:08d}-000000" for i in range(16)]
    for i, name in enumerate(names):
        encoded = Encoded(records=[bytes([i]) * 100_000] * 10, table=[(50_000, 0, 0)] * 10)
        _staged._write(place.staging / name, encoded)
    tracemalloc.start()
    try:
        entry = _staged.assemble(names, place=place, number=0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert entry["bytes"] == 16_000_000
    assert peak_bytes < 6_000_000  # a file, its records, and the next file


def test_files_of_another_source_are_deleted(place):
    (place.staging / NAME).touch()
    again = _staged.begin(place.directory, {"source": "1"})
    assert (again, (place.staging / NAME).exists()) == (place, True)
    other = _staged.begin(place.directory, {"source": "2"})
    assert list((place.directory / "staged").iterdir()) == [other.staging]


def test_a_host_without_the_directory_is_an_error(work, place, tmp_path):
    job, task = work
    elsewhere = dataclasses.replace(place, directory=tmp_path / "elsewhere", hostname="driver")
    message = r"each host must see the corpus's directory: got directory=.*elsewhere, .*as on drive"
    with pytest.raises(ValueError, match=message + r".*Give one of a file system that all hosts"):
        _staged.encode(job, task, place=elsewhere, name=NAME)
    with pytest.raises(ValueError, match=message):
        _staged.assemble([], place=elsewhere, number=0)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("hostname", ["driver", None])
def test_a_host_without_the_input_is_noted(work, place, tmp_path, hostname):
    job, task = work
    assert job.source.fingerprint
    (tmp_path / "x.jsonl").unlink()
    place = dataclasses.replace(place, hostname=hostname or place.hostname)
    with pytest.raises(ValueError, match="a source must not change while it is read") as caught:
        _staged.encode(job, task, place=place, name=NAME)
    notes = getattr(caught.value, "__notes__", [])
    assert len(notes) == (hostname is not None)
    assert all("must see the files of the source: got" in note for note in notes)


@pytest.mark.parametrize("moment", ["stage", "shard"])
def test_a_full_disk_is_marked_and_leaves_nothing(work, place, monkeypatch, moment):
    job, task = work
    _staged.encode(job, task, place=place, name=NAME)

    def full(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    calls = {
        "stage": lambda: _staged.encode(job, task, place=place, name="00000001-000000"),
        "shard": lambda: _staged.assemble([NAME], place=place, number=0),
    }
    with pytest.raises(_staged.DiskError, match="No space left") as caught:
        calls[moment]()
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in place.staging.iterdir()] == [NAME]
    assert sorted(path.name for path in place.directory.iterdir()) == [LEDGER, "staged"]
