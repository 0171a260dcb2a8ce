# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail_data import Bytes, Part, Text, jsonl, write
from dovetail_data.writing.workers import cut, tasks


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }


def part(name, size):
    return Part(name=name, path=f"/{name}", start=0, stop=size, bytes=size)


def test_small_parts_share_a_chunk_and_a_large_one_has_its_own(monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 10)
    monkeypatch.setattr("dovetail_data.writing.workers._LARGE_BYTES", 100)
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
    monkeypatch.setattr("dovetail_data.writing.workers._SLICE_RECORDS", 7)
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
    monkeypatch.setattr("dovetail_data.writing.workers._LARGE_BYTES", 1)
    monkeypatch.setattr("dovetail_data.writing.workers._SLICE_RECORDS", 7)
    chunks = cut([part("a", 3), part("b", count), part("c", 2)])
    slices = -(-count // 7)
    for skipped in range(slices):
        left = list(tasks(Numbers(), chunks, done=1, slices=skipped))
        pieces = [piece for task in left for piece in task.pieces]
        assert [task.ends for task in left] == [False] * (slices - skipped - 1) + [True, True]
        of_b = [(p.first + i, r["n"]) for p in pieces[:-1] for i, r in enumerate(p.records)]
        assert of_b == [(i, i) for i in range(7 * skipped, count)]
        assert pieces[-1].input_part.name == "c"


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl"])
def test_a_large_part_is_encoded_in_slices_and_resumed_within(tmp_path, monkeypatch, name, workers):
    lines = "\n".join(json.dumps({"text": f"document {i} " * 40}) for i in range(100))
    content = gzip.compress(lines.encode(), mtime=0) if name.endswith("gz") else lines.encode()
    (tmp_path / name).write_bytes(content)
    source, encoder = jsonl(tmp_path / name), Text(Bytes())
    whole = write(source, tmp_path / "whole", encoder=encoder)
    monkeypatch.setattr("dovetail_data.writing.workers._LARGE_BYTES", 100)
    monkeypatch.setattr("dovetail_data.writing.workers._SLICE_RECORDS", 7)
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


@pytest.fixture
def damaged(tmp_path):
    """Eleven lines in two files, of which three are damaged: two by their JSON, one by its text."""
    lines = [json.dumps({"text": f"document {i}"}) for i in range(11)]
    lines[2], lines[7], lines[9] = "{", '{"text": null}', "]"
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:6]))
    (tmp_path / "b.jsonl").write_text("\n".join(lines[6:]))
    return jsonl(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_corrupt_records_are_left_out_counted_and_listed(damaged, tmp_path, monkeypatch, workers):
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 1)
    events = []
    corpus = write(
        damaged,
        tmp_path / "c",
        encoder=Text(Bytes()),
        workers=workers,
        max_corrupt=3,
        shard_bytes=1,
        progress=events.append,
    )
    texts = [corpus.tokenizer.decode(corpus[i]["tokens"]) for i in range(len(corpus))]
    assert texts == [f"document {i}" for i in range(11) if i not in (2, 7, 9)]
    assert [record.where for record in corpus.corrupt] == ["a.jsonl:3", "b.jsonl:2", "b.jsonl:4"]
    assert "must have a string under field='text'" in corpus.corrupt[1].error
    assert events[-1].corrupt == 3
    assert [corpus.source(i)[1] for i in range(len(corpus))] == [0, 1, 3, 4, 5, 0, 2, 4]


def test_one_corrupt_record_too_many_is_an_error_that_lists_them(damaged, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 1)
    message = (
        r"at most max_corrupt=2 records may be corrupt: got 3 so far:\n  a\.jsonl:3: .*\n"
        r"  b\.jsonl:2: .*\n  b\.jsonl:4: .*\nMend them and call write"
    )
    arguments = {"encoder": Text(Bytes()), "shard_bytes": 1}
    with pytest.raises(ValueError, match=message):
        write(damaged, tmp_path / "c", max_corrupt=2, **arguments)
    with pytest.raises(ValueError, match=r"may be corrupt: got 1 so far:\n  a\.jsonl:3: "):
        write(damaged, tmp_path / "c", **arguments)  # what the ledger has counts too
    resumed = write(damaged, tmp_path / "c", max_corrupt=3, **arguments)
    whole = write(damaged, tmp_path / "whole", max_corrupt=9, **arguments)
    assert resumed.fingerprint == whole.fingerprint
    assert digests(tmp_path / "c") == digests(tmp_path / "whole")


def test_an_encoder_that_loses_a_record_is_an_error(tmp_path):
    class Losing(Text):
        def __call__(self, records):
            return super().__call__(records)[1:]

    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"text": "b"}')
    with pytest.raises(ValueError, match=r"one result for each record: got 1 for 2. Return None"):
        write(jsonl(tmp_path), tmp_path / "c", encoder=Losing(Bytes()))


@pytest.mark.thorough
def test_a_worker_that_dies_is_an_error(tmp_path):
    (tmp_path / "x.txt").write_text("a")
    program = (
        "import sys, os\n"
        "from dovetail_data import Bytes, Text, text, write\n"
        "class Dying(Text):\n"
        "    def __call__(self, records): os._exit(9)\n"
        "if __name__ == '__main__':\n"
        "    write(text(sys.argv[1]), sys.argv[2], encoder=Dying(Bytes()), workers=2)\n"
    )
    (tmp_path / "program.py").write_text(program)
    run = subprocess.run(
        [sys.executable, tmp_path / "program.py", tmp_path / "x.txt", tmp_path / "c"],
        capture_output=True,
        text=True,
        check=False,
    )
    message = run.stderr.strip().splitlines()[-1]
    assert message.startswith("RuntimeError: each worker must live")
    assert "got workers=2 with one dead" in message
    assert "Guard the script" in message


@pytest.mark.thorough
def test_an_error_in_a_worker_reaches_the_caller(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    program = (
        "import sys\n"
        "from dovetail_data import Bytes, Text, text, write\n"
        "if __name__ == '__main__':\n"
        "    write(text(sys.argv[1]), sys.argv[2], encoder=Text(Bytes()), workers=2)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "latin.txt", tmp_path / "c"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "max_corrupt=0 records may be corrupt: got 1 so far" in run.stderr
    assert "latin.txt: a text file must be UTF-8: got byte 0xe9 at offset 3" in run.stderr
