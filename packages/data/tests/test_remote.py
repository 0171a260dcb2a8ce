# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import logging
import pickle
import subprocess
import sys

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dovetail_data import (
    Bytes,
    Corpus,
    DamageError,
    Text,
    arrow,
    batches,
    hf_directory,
    jsonl,
    pack,
    parquet,
    records,
    text,
    verify,
    write,
)
from dovetail_data.sources import _remote

SHARD_BYTES = 1500
TEXTS = [f"text {i} " + "abc" * (i % 40) for i in range(100)]


@pytest.fixture
def memory(remote_files):
    """The files of memory://, by path."""
    return remote_files.store


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 500)
    (tmp_path / "in").mkdir()
    for i, content in enumerate(TEXTS):
        (tmp_path / f"in/{i:03d}.txt").write_text(content)
    return text(tmp_path / "in")


@pytest.fixture
def expected(source, tmp_path):
    """The corpus as a local write makes it."""
    return write(source, tmp_path / "local", encoder=Text(Bytes()), shard_bytes=SHARD_BYTES)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def uploaded(memory, root="/b/corpus/"):
    return {p.removeprefix(root): f.getvalue() for p, f in memory.items() if p.startswith(root)}


def assert_equal(corpus, expected):
    assert corpus.fingerprint == expected.fingerprint
    assert len(corpus) == len(expected)
    order = np.random.default_rng(0).permutation(len(corpus))
    for mine, theirs in zip(corpus.read(order), expected.read(order), strict=True):
        np.testing.assert_array_equal(mine["tokens"], theirs["tokens"])


def remote_write(source, url="memory://b/corpus", **options):
    return write(source, url, encoder=Text(Bytes()), shard_bytes=SHARD_BYTES, **options)


@pytest.mark.capability("corpora at s3://, gs:// and hf:// URLs")
def test_a_corpus_at_a_url_has_the_bytes_of_a_local_one(memory, source, expected, tmp_path):
    corpus = remote_write(source)
    assert uploaded(memory) == contents(expected.directory)
    assert repr(corpus).startswith("Corpus('memory://b/corpus', documents=100,")
    assert not list((tmp_path / "cache/dovetail/data/writing").iterdir())
    assert_equal(Corpus("memory://b/corpus"), expected)
    assert_equal(pickle.loads(pickle.dumps(corpus)), expected)
    assert verify("memory://b/corpus").bytes == verify(expected.directory).bytes
    its = [batches(pack(c, length=64, seed=0), global_batch=4, seed=1) for c in (corpus, expected)]
    assert its[0].get_state() == its[1].get_state()
    for _ in range(3):
        mine, theirs = next(its[0]), next(its[1])
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    assert remote_write(source).fingerprint == expected.fingerprint  # finished: opened
    with pytest.raises(ValueError, match="must be continued with the same encoder"):
        write(source, "memory://b/corpus", encoder=Text(Bytes(), field="other"))


def test_shards_come_when_they_are_read_and_go_for_room(memory, source, expected, tmp_path):
    remote_write(source)
    shards = sorted(path.name for path in expected.directory.glob("*.array_record"))
    assert len(shards) > 4
    cache = tmp_path / "own"
    corpus = Corpus("memory://b/corpus", cache=cache)
    assert not list(cache.rglob("*.array_record"))
    _ = corpus[0]
    assert [path.name for path in cache.rglob("*.array_record")] == shards[:1]
    limit = 3 * max(len(uploaded(memory)[name]) for name in shards)
    small = Corpus("memory://b/corpus", cache=tmp_path / "small", cache_bytes=limit)
    for document in [*range(0, 100, 7), *range(99, 0, -11)]:
        np.testing.assert_array_equal(small[document]["tokens"], expected[document]["tokens"])
        kept = list((tmp_path / "small").rglob("*.array_record"))
        assert 0 < sum(path.stat().st_size for path in kept) <= limit
    with pytest.raises(ValueError, match="only a corpus at a URL has a cache: got"):
        Corpus(expected.directory, cache_bytes=9)


class Stopped(Exception):
    pass


def stop_after(events):
    left = iter(range(events))

    def progress(_):
        if next(left, None) is None:
            raise Stopped

    return progress


@pytest.mark.thorough
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_write_goes_on_here_and_on_another_machine(
    elsewhere, memory, source, expected, tmp_path, monkeypatch
):
    with pytest.raises(Stopped):
        remote_write(source, progress=stop_after(6))
    before = uploaded(memory)
    assert "ledger.jsonl" in before
    assert "index.json" not in before
    with pytest.raises(ValueError, match=r"must be finished: got memory://b/corpus without"):
        Corpus("memory://b/corpus")
    if elsewhere:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    sizes = []
    remote_write(source, progress=lambda done: sizes.append(done.documents))
    assert sizes[0] > 0  # the finished shards were not written again
    after = uploaded(memory)
    shards = {n: c for n, c in before.items() if n != "ledger.jsonl"}
    assert {name: after[name] for name in shards} == shards
    assert_equal(Corpus("memory://b/corpus"), expected)


def test_a_url_with_other_files_is_refused(memory, source):
    memory_file = MemoryFileSystem()
    memory_file.pipe_file("/b/corpus/notes.txt", b"mine")
    with pytest.raises(ValueError, match=r"must be written to an empty directory: got memory.*no"):
        remote_write(source)
    assert uploaded(memory) == {"notes.txt": b"mine"}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_faults_of_the_storage_cost_retries_alone(seed, faulty, memory, source, expected, caplog):
    with caplog.at_level(logging.WARNING, "dovetail_data.sources._remote"):
        faulty.begin(seed, rate=0.12)
        remote_write(source, "faulty://b/corpus")
        assert uploaded(memory) == contents(expected.directory)
        corpus = Corpus("faulty://b/corpus")
        assert_equal(corpus, expected)
    assert faulty.seen
    assert len(caplog.records) >= len(faulty.seen) / 2  # a flip of an index is read again silently
    assert list(corpus.directory.glob(".*.partial")) == []


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["fail", "hang", "cut", "flip"])
def test_storage_that_never_answers_rightly_is_given_up(
    fault, faulty, memory, source, monkeypatch, tmp_path
):
    remote_write(source)
    monkeypatch.setattr(_remote, "ATTEMPTS", 3)
    # The deadline of the fixture is for calls that hang: on a busy machine another takes longer.
    monkeypatch.setattr(_remote, "DEADLINE_S", 0.2 if fault == "hang" else 60.0)
    corpus = Corpus("faulty://b/corpus", cache=tmp_path / "c")
    faulty.begin(0, rate=1, faults=(fault,))
    with pytest.raises(OSError, match=r"remote storage must give .* within 3 attempts") as error:
        _ = corpus[0]
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0].strip() for line in lines if "attempt " in line[:12]] == [
        "attempt 1",
        "attempt 2",
        "attempt 3",
    ]
    told = {"fail": "the network failed", "hang": "no answer within 0.2 s", "cut": "bytes came"}
    assert told.get(fault, "sha256") in lines[1]
    assert corpus.retries >= 2
    assert not list((tmp_path / "c").rglob("*.array_record"))  # nothing unverified is kept
    faulty.begin(0, rate=0)
    monkeypatch.setattr(_remote, "DEADLINE_S", 60.0)
    assert len(corpus[0]["tokens"])


def test_damage_at_the_url_is_found(memory, source, tmp_path, monkeypatch):
    remote_write(source)
    monkeypatch.setattr(_remote, "ATTEMPTS", 2)
    monkeypatch.setattr("dovetail_data.corpus.mirror.ATTEMPTS", 2)
    content = uploaded(memory)
    flipped = {
        name: content[name][:50] + bytes([content[name][50] ^ 4]) + content[name][51:]
        for name in ("00001.array_record", "00001.npy", "index.json")
    }
    system = MemoryFileSystem()
    for name, error in (
        ("00001.array_record", OSError),
        ("00001.npy", OSError),
        ("index.json", DamageError),
    ):
        system.pipe_file(f"/b/corpus/{name}", flipped[name])
        with pytest.raises(error):
            list(Corpus("memory://b/corpus", cache=tmp_path / name).read(np.arange(100)))
        with pytest.raises(DamageError, match=name):
            verify("memory://b/corpus")
        system.pipe_file(f"/b/corpus/{name}", content[name])
    assert verify("memory://b/corpus")


def test_sources_at_urls_are_those_of_local_files(memory, tmp_path):
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path / "in"
    (folder / "deep/er").mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "one"}\n')
    (folder / "deep/er/b.jsonl").write_text('{"text": "two"}\n')
    (folder / "c.txt").write_text("three")
    table = pyarrow.table({"text": ["four", "five"]})
    pyarrow.parquet.write_table(table, folder / "deep/d.parquet")
    system = MemoryFileSystem()
    for path in folder.rglob("*"):
        if path.is_file():
            system.pipe_file(f"/b/in/{path.relative_to(folder)}", path.read_bytes())
    for make in (jsonl, text, parquet):
        for mine, theirs in (
            (make("memory://b/in"), make(folder)),
            (make("memory://b/in/"), make(folder)),
        ):
            assert [f.name for f in mine.files] == [f.name for f in theirs.files]
            assert mine.fingerprint == theirs.fingerprint
            assert list(records(mine)) == list(records(theirs))
    pair = jsonl(["memory://b/in/a.jsonl", "memory://b/in/deep/er/b.jsonl"])
    assert [file.name for file in pair.files] == ["a.jsonl", "deep/er/b.jsonl"]
    again = jsonl("memory://b/in/a.jsonl")
    system.pipe_file("/b/in/a.jsonl", b'{"text": "new"}\n')
    assert list(records(again)) == [{"text": "one"}]
    assert list(records(jsonl("memory://b/in/a.jsonl"))) == [{"text": "new"}]
    with pytest.raises(ValueError, match="a source must exist: got path='memory://b/no"):
        text("memory://b/none.txt")
    with pytest.raises(ValueError, match="all local or all at URLs: got 'memory://b/in' among"):
        text(["memory://b/in", folder])
    with pytest.raises(ValueError, match="must have at least one file: got none from paths"):
        arrow("memory://b/in")
    with pytest.raises(ValueError, match="with splits must be local: got path='memory://b/in'"):
        hf_directory("memory://b/in", split="train")


def test_a_source_that_does_not_fit_the_disk_is_refused(memory, monkeypatch):
    MemoryFileSystem().pipe_file("/b/a.txt", b"x" * 100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 99}))
    with pytest.raises(OSError, match="must fit the disk: got 100 bytes in b, 99 free"):
        text("memory://b/a.txt")


@pytest.mark.thorough
def test_the_command_takes_urls(memory, command, source, expected):
    for i, content in enumerate(TEXTS):
        MemoryFileSystem().pipe_file(f"/b/in/{i:03d}.txt", content.encode())
    out = "memory://b/corpus"
    code, printed, _ = command("write", "memory://b/in", "--out", out, "--json")
    assert (code, json.loads(printed)["documents"]) == (0, 100)
    assert Corpus(out)[7]["tokens"].tolist() == expected[7]["tokens"].tolist()
    code, printed, _ = command("inspect", out, "--json")
    assert (code, json.loads(printed)["corpus"]) == (0, out)
    code, printed, _ = command("verify", out)
    assert (code, printed.partition(":")[0]) == (0, "memory")
    code, printed, _ = command("budget", out, "--global-batch", "2", "--steps", "3")
    assert code == 0
    assert "corpus" in printed
    assert command("verify", out, "--add")[0] == 2


HIDDEN = """
import sys
sys.modules[sys.argv[2]] = None
from dovetail_data import Corpus
try:
    Corpus(sys.argv[1])
except ImportError as error:
    print(error)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "url, package, install",
    [
        ("s3://b/c", "s3fs", "pip install s3fs"),
        ("gs://b/c", "gcsfs", "pip install gcsfs"),
        ("hf://datasets/a/b", "huggingface_hub", "pip install huggingface_hub"),
        ("memory://b/c", "fsspec", "pip install 'dovetail-data[remote]'"),
    ],
)
def test_a_missing_package_is_named(url, package, install):
    line = [sys.executable, "-c", HIDDEN, url, package]
    printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    scheme = url.partition("://")[0]
    assert f"{scheme}:// need the package {package}, which is not installed: {install}" in printed


def test_an_unknown_scheme_is_named():
    with pytest.raises(ValueError, match=r"a scheme that fsspec knows: got url='xyz://b/c'"):
        Corpus("xyz://b/c")
