# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gzip
import hashlib
import json
from pathlib import Path

import pytest

from dovetail_data import Bytes, Part, Text, jsonl, write
from dovetail_data._tasks import cut, tasks


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }


def part(name, size):
    return Part(name=name, path=f"/{name}", start=0, stop=size, bytes=size)


def test_small_parts_share_a_chunk_and_a_large_one_has_its_own(monkeypatch):
    monkeypatch.setattr("dovetail_data._tasks._CHUNK_BYTES", 10)
    monkeypatch.setattr("dovetail_data._tasks._LARGE_BYTES", 100)
    sizes = [4, 5, 3, 9, 100, 1, 2, 12, 300, 100, 0]
    chunks = cut([part(str(i), size) for i, size in enumerate(sizes)])
    assert [[i for i, _ in chunk] for chunk in chunks] == [
        [0, 1, 2],
        [3],
        [4],
        [5, 6, 7],
        [8],
        [9],
        [10],
    ]


def test_a_ledger_of_another_way_to_cut_is_not_continued(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"text": 1}')
    source, options = jsonl(tmp_path / "x.jsonl"), {"encoder": Text(Bytes())}
    with pytest.raises(ValueError, match="may be corrupt"):
        write(source, tmp_path / "c", **options)
    monkeypatch.setattr("dovetail_data._tasks._SLICE_RECORDS", 7)
    with pytest.raises(ValueError, match=r"continued with the same cut: got cut='.*/7', it holds"):
        write(source, tmp_path / "c", max_corrupt=1, **options)


class Numbers:
    """A source whose part of n bytes has n records."""

    fingerprint = "numbers"

    def parts(self):
        raise AssertionError("not used")

    def read(self, part):
        yield from ({"n": i} for i in range(part.bytes))

    def locate(self, part, i):
        return f"{part.name}:{i}"


@pytest.mark.parametrize("count", [1, 6, 7, 13, 14])
def test_what_is_left_of_a_large_part_is_what_its_slices_lack(monkeypatch, count):
    monkeypatch.setattr("dovetail_data._tasks._LARGE_BYTES", 1)
    monkeypatch.setattr("dovetail_data._tasks._SLICE_RECORDS", 7)
    chunks = cut([part("a", 3), part("b", count), part("c", 2)])
    slices = -(-count // 7)
    for skipped in range(slices):
        left = list(tasks(Numbers(), chunks, done=1, slices=skipped))
        pieces = [piece for task in left for piece in task.pieces]
        assert [task.ends for task in left] == [False] * (slices - skipped - 1) + [True, True]
        of_b = [(p.first + i, r["n"]) for p in pieces[:-1] for i, r in enumerate(p.records)]
        assert of_b == [(i, i) for i in range(7 * skipped, count)]
        assert pieces[-1].input_part.name == "c"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl"])
def test_a_large_part_is_encoded_in_slices_and_resumed_within(tmp_path, monkeypatch, name, workers):
    lines = "\n".join(json.dumps({"text": f"document {i} " * 40}) for i in range(100))
    content = gzip.compress(lines.encode(), mtime=0) if name.endswith("gz") else lines.encode()
    (tmp_path / name).write_bytes(content)
    source, encoder = jsonl(tmp_path / name), Text(Bytes())
    whole = write(source, tmp_path / "whole", encoder=encoder)
    monkeypatch.setattr("dovetail_data._tasks._LARGE_BYTES", 100)
    monkeypatch.setattr("dovetail_data._tasks._SLICE_RECORDS", 7)
    options = {"encoder": encoder, "shard_bytes": 20_000, "workers": workers}
    sliced = write(source, tmp_path / "sliced", **options)
    assert len(sliced._paths) > 3
    assert [sliced[i]["tokens"].tolist() for i in range(100)] == [
        whole[i]["tokens"].tolist() for i in range(100)
    ]
    assert [sliced.source(i) for i in range(100)] == [whole.source(i) for i in range(100)]
    events = []

    class StopError(Exception):
        pass

    def stop(event):
        events.append(event)
        if len(events) % 6 == 0:
            raise StopError

    for _ in range(2):
        with pytest.raises(StopError):
            write(source, tmp_path / "c", progress=stop, **options)
    write(source, tmp_path / "c", **options)
    assert digests(tmp_path / "c") == digests(tmp_path / "sliced")
    assert [event.documents for event in events[:6]] == [7, 14, 21, 28, 35, 42]
    assert 0 < events[6].documents < 49  # it went on from a shard that ended within the part
