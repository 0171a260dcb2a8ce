# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dovetail_data.corpus.processes
import dovetail_data.corpus.shard
from dovetail_data import Bytes, Document, Text, jsonl, text, write
from dovetail_data.corpus.ledger import LEDGER

module = sys.modules["dovetail_data.writing.write"]

# A corpus of several chunks (of about 20 kB here) and several shards. After each chunk it waits
# for a line, so that it can be killed at a chosen chunk however slow the machine is.
PROGRAM = """
import sys
import dovetail_data.writing.workers
from dovetail_data import Bytes, Text, text, write

def proceed(event):
    print(event.tokens, flush=True)
    sys.stdin.readline()

if __name__ == "__main__":
    source, directory, workers = sys.argv[1:]
    dovetail_data.writing.workers._CHUNK_BYTES = 20_000
    write(text(source), directory, encoder=Text(Bytes()), shard_bytes=90_000, workers=int(workers),
          progress=proceed)
"""


def start(arguments) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(arguments) -> list[int]:
    """Runs to the end; the tokens written after each chunk."""
    command = [sys.executable, *arguments]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return [int(line) for line in run.stdout.split()]


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tree")
    rng = random.Random(0)
    for i in range(60):
        words = [rng.choice(["lorem", "ipsum", "día", "\n"]) for _ in range(rng.randrange(3000))]
        (directory / f"{i:03}.txt").write_text(" ".join(words))
    return directory


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def undisturbed(tree, program, tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed") / "corpus"
    progress = finish([program, tree, directory, "1"])
    return digests(directory), progress


@pytest.mark.thorough
def test_workers_do_not_change_a_byte(tree, program, undisturbed, tmp_path):
    finish([program, tree, tmp_path / "c", "2"])
    assert digests(tmp_path / "c") == undisturbed[0]
    assert sum(name.endswith(".array_record") for name in undisturbed[0]) >= 3


@pytest.mark.thorough
@pytest.mark.capability("writing of shards, killed or on a full disk")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_at_random_moments_the_bytes_are_the_same(
    tree, program, undisturbed, tmp_path, workers
):
    files, progress = undisturbed
    rng = random.Random(int(workers))
    for _ in range(3):
        with start([program, tree, tmp_path / "c", workers]) as writer:
            for _ in range(rng.randrange(1, len(progress) // 3)):
                writer.stdout.readline()
                writer.stdin.write("\n")
                writer.stdin.flush()
            time.sleep(rng.random() * 0.02)  # somewhere in the next chunk or at its rename
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
    last = finish([program, tree, tmp_path / "c", workers])
    assert digests(tmp_path / "c") == files
    assert 0 < len(last) < len(progress)
    assert last == progress[-len(last) :]


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("moment", ["before the rename", "after it"])
def test_a_crash_around_the_rename_of_a_shard(tree, tmp_path, monkeypatch, shard, moment):
    source, encoder = text(tree), Text(Bytes())
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 20_000)
    write(source, tmp_path / "whole", encoder=encoder, shard_bytes=90_000)
    rename = Path.replace

    def crash(path, target):
        if path.name == f"partial-{shard:05}.npy":
            if moment == "after it":
                rename(path, target)
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            write(source, tmp_path / "c", encoder=encoder, shard_bytes=90_000)
    write(source, tmp_path / "c", encoder=encoder, shard_bytes=90_000)
    assert digests(tmp_path / "c") == digests(tmp_path / "whole")


@pytest.mark.thorough
def test_a_killed_writer_leaves_no_worker_behind(tree, program, tmp_path):
    with start([program, tree, tmp_path / "c", "2"]) as writer:
        writer.stdout.readline()
        writer.kill()
        # The workers hold the other end of the pipe: it ends when the last of them has.
        writer.communicate(timeout=300)


@pytest.mark.capability("writing of shards, killed or on a full disk")
def test_a_full_disk_keeps_what_was_finished(tree, undisturbed, tmp_path):
    # ArrayRecord pads a file to 64 KiB: the limit lets small files pass and stops a shard.
    limited = PROGRAM.replace(
        "import sys",
        "import sys, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)\n"
        "sys.dont_write_bytecode = True",  # it would be cut, too
    )
    command = [sys.executable, "-c", limited, tree, tmp_path / "c", "1"]
    run = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    message = run.stderr.strip().splitlines()[-1]
    assert message.startswith("OSError: ")
    assert "the disk must take the corpus: got" in message
    assert f"directory={tmp_path / 'c'}" in message
    assert "Free space and call write(...) again: it goes on from 0 finished" in message
    assert [path.name for path in (tmp_path / "c").iterdir()] == [LEDGER]
    finish(["-c", PROGRAM, *command[3:]])
    assert digests(tmp_path / "c") == undisturbed[0]


def test_a_finished_corpus_is_opened_not_written(tree, tmp_path):
    first = write(text(tree), tmp_path / "c", encoder=Text(Bytes()))
    before = {path: path.stat().st_mtime_ns for path in first.directory.iterdir()}
    events = []
    again = write(text(tree), tmp_path / "c", encoder=Text(Bytes()), progress=events.append)
    assert again.fingerprint == first.fingerprint
    assert events == []
    assert {path: path.stat().st_mtime_ns for path in first.directory.iterdir()} == before


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("changed", ["source", "encoder", "shard_bytes"])
def test_a_changed_call_is_an_error(tree, bpe, tmp_path, changed, finished):
    source, encoder = text(tree), Text(Bytes())
    write(source, tmp_path / "c", encoder=encoder, shard_bytes=90_000)
    if not finished:
        (tmp_path / "c" / "index.json").unlink()
    if changed == "source":
        source = text(tree, pattern="**/00*.txt")
    if changed == "encoder":
        encoder = Text(bpe)
    shard_bytes = 1 << 20 if changed == "shard_bytes" else 90_000
    message = rf"with the same {changed}: got {changed}=.*, it holds .*Give another directory"
    with pytest.raises(ValueError, match=message):
        write(source, tmp_path / "c", encoder=encoder, shard_bytes=shard_bytes)


def test_counts_and_progress(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 5)
    (tmp_path / "x.jsonl").write_text('{"text": "né"}\n{"text": ""}\n{"text": "yes"}')
    (tmp_path / "y.jsonl").write_text('{"text": "no"}')
    events = []
    corpus = write(jsonl(tmp_path), tmp_path / "c", encoder=Text(Bytes()), progress=events.append)
    assert (len(corpus), corpus.tokens, corpus.text_bytes, corpus.dropped) == (3, 14, 8, 1)
    assert [(event.parts, event.total_parts) for event in events] == [(1, 2), (2, 2)]
    assert [event.documents for event in events] == [2, 3]
    assert [event.tokens for event in events] == [10, 14]
    sizes = [(tmp_path / name).stat().st_size for name in ("x.jsonl", "y.jsonl")]
    assert [event.bytes for event in events] == [sizes[0], sum(sizes)]
    assert {event.total_bytes for event in events} == {sum(sizes)}


def test_an_id_outside_the_vocabulary_is_an_error(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "abc"}')
    tokenizer = Bytes()
    tokenizer.vocab_size = 257
    message = (
        r"x\.jsonl:1: each value of tokens must lie in \[0, 256\]: got 257. Mend the tokenizer"
    )
    with pytest.raises(ValueError, match=message):
        write(jsonl(tmp_path), tmp_path / "c", encoder=Text(tokenizer))


def test_an_encoder_of_another_dtype_is_an_error(counting, tmp_path):
    class Wide(counting):
        def __call__(self, records):
            documents = super().__call__(records)
            return [
                Document(arrays={"tokens": document.arrays["tokens"] * 1.0})
                for document in documents
            ]

    (tmp_path / "x.jsonl").write_text('{"text": "[1, 4]"}')
    with pytest.raises(ValueError, match=r"that uint32 holds: got float64\[3\]. Cast it"):
        write(jsonl(tmp_path), tmp_path / "c", encoder=Wide())


def test_a_source_without_text_is_an_error(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(
        ValueError, match=r"a document: got documents=0, dropped=1, corrupt=0. Give"
    ):
        write(jsonl(tmp_path), tmp_path / "c", encoder=Text(Bytes()))


def test_a_source_of_an_empty_file_is_an_error(tmp_path):
    (tmp_path / "x.jsonl").touch()
    with pytest.raises(
        ValueError, match=r"a document: got documents=0, dropped=0, corrupt=0. Give"
    ):
        write(jsonl(tmp_path), tmp_path / "c", encoder=Text(Bytes()))


@pytest.mark.parametrize("name", ["workers", "shard_bytes"])
def test_options_below_one_are_errors(tmp_path, name):
    (tmp_path / "x.txt").write_text("a")
    with pytest.raises(ValueError, match=rf"{name} must be >= 1: got {name}=0. Pass 1"):
        write(text(tmp_path), tmp_path / "c", encoder=Text(Bytes()), **{name: 0})


def test_a_corpus_within_its_source_is_an_error(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}')
    write(jsonl(tmp_path), tmp_path / "c", encoder=Text(Bytes()))
    message = r"must not hold files of its source: got .*ledger\.jsonl in .*Give a directory"
    with pytest.raises(ValueError, match=message):
        write(jsonl(tmp_path), tmp_path / "c", encoder=Text(Bytes()))


def test_workers_leave_this_process_as_it_was():
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    assert dovetail_data.corpus.processes._work is None


def test_an_unknown_layout_of_array_record_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_text("abc" * 1000)  # long enough to be compressed
    monkeypatch.setattr("dovetail_data.corpus.shard._OPTIONS", "group_size:1,zstd")
    with pytest.raises(ValueError, match=r"must write each document as one chunk: got .*Use array"):
        write(text(tmp_path / "x.txt"), tmp_path / "c", encoder=Text(Bytes()))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [LEDGER]


def test_a_record_that_does_not_lie_where_it_was_found_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_text("abc")
    whole = dovetail_data.corpus.shard.extents
    monkeypatch.setattr(
        "dovetail_data.corpus.shard.extents",
        lambda path: ((at - 1, size) for at, size in whole(path)),
    )
    with pytest.raises(ValueError, match=r"must write each document as one chunk: got .*Use array"):
        write(text(tmp_path / "x.txt"), tmp_path / "c", encoder=Text(Bytes()))


def test_the_fingerprint_is_of_documents_and_what_made_them(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": "same", "b": "same"}')
    made = [
        write(jsonl(tmp_path / "x.jsonl"), tmp_path / name, encoder=Text(Bytes(), field=field))
        for name, field in (("1", "a"), ("2", "a"), ("3", "b"))
    ]
    assert made[0].fingerprint == made[1].fingerprint != made[2].fingerprint
    assert made[0][0]["tokens"].tolist() == made[2][0]["tokens"].tolist()


@pytest.mark.slow
def test_killed_at_a_hundred_random_moments(tree, program, undisturbed, tmp_path):
    """Killed at a random moment of its life, again and again, until it finishes: each round the
    corpus must come out with the same bytes."""
    files, progress = undisturbed
    rng = random.Random(7)
    kills = 0
    for attempt in range(1000):
        directory = tmp_path / f"c{attempt}"
        while not (directory / "index.json").exists() and kills < 100:
            with start([program, tree, directory, str(1 + attempt % 2)]) as writer:
                left = rng.randrange(len(progress))
                while writer.stdout.readline() and left:  # "": it has ended by itself
                    writer.stdin.write("\n")
                    writer.stdin.flush()
                    left -= 1
                time.sleep(rng.random() * 0.03)
                if writer.poll() is None:
                    writer.kill()
                    kills += 1
        finish([program, tree, directory, "1"])
        assert digests(directory) == files
        if kills >= 100:
            return
    raise AssertionError("a hundred kills were never reached")
