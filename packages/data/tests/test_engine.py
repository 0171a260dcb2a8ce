# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_data import Bytes, Text, text
from dovetail_data.record import Codec
from dovetail_data.writing.workers import Job, Local, cut, tasks


@pytest.fixture
def engine(tmp_path):
    """An engine whose first shard is number 3, and its two tasks."""
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.txt").write_text(name)
    source, encoder = text(tmp_path / "in"), Text(Bytes())
    job = Job(source=source, encoder=encoder, codec=Codec(encoder.layout))
    chunks = [cut([part])[0] for part in source.parts()]
    (tmp_path / "out").mkdir()
    local = Local(job, tmp_path / "out", number=3, workers=1)
    return local, tasks(source, chunks, done=0, slices=0)


def test_shards_are_numbered_on_and_their_lines_come_once(engine, tmp_path):
    local, left = engine
    for i, (result, ends) in enumerate(local.results(left)):
        assert (result.documents, ends, local.bytes) == (1, True, 0)
        local.add(result)
        assert local.bytes > 0
        local.end_shard({"chunks": i + 1})
    lines = list(local.lines(wait=False))
    assert [line["chunks"] for line in lines] == [1, 2]
    assert [line["shard"]["records"]["file"] for line in lines] == [
        "00003.array_record",
        "00004.array_record",
    ]
    assert list(local.lines(wait=True)) == []


def test_an_unfinished_shard_is_deleted(engine, tmp_path):
    local, left = engine
    result, _ = next(local.results(left))
    local.add(result)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["partial-00003.array_record"]
    local.close()
    assert list((tmp_path / "out").iterdir()) == []
