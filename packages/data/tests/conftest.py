# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes checked at run time, two CPU devices, and corpora of any lengths."""

import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import fsspec
import jaxtyping
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import forced_devices

os.environ.update(forced_devices.environment(2))  # before jax is imported
jaxtyping.install_import_hook("dovetail_data", "beartype.beartype")

sys.path.append(str(Path(__file__).parent))  # dialogues.py, for several test files

import jax  # noqa: E402

import dovetail_data  # noqa: E402
from dovetail_data import Corpus, Document, jsonl, write  # noqa: E402
from dovetail_data.command import cli  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


class Counting:
    """A tokenizer and encoder whose documents are given by their first and last ids alone.

    Every id of a corpus occurs once: id k follows id k - 1, so a pair names its place.
    """

    bos_id = None
    eos_id = 0
    fingerprint = "counting"

    def __init__(self, *, vocab_size: int = 1 << 20) -> None:
        self.vocab_size = vocab_size
        self.tokenizer = self
        self.layout = {"tokens": dovetail_data.ids(vocab_size)}
        self.manifest = {"encoder": "counting", "tokenizer": self.fingerprint}

    def encode(self, texts):
        raise AssertionError("not used")

    def decode(self, ids):
        raise AssertionError("not used")

    def __call__(self, records):
        ranges = [json.loads(record["text"]) for record in records]
        return [Document(arrays={"tokens": np.arange(*ends, dtype=np.int32)}) for ends in ranges]


@pytest.fixture(scope="session")
def counting():
    return Counting


@pytest.fixture(scope="session")
def corpus_of(tmp_path_factory):
    """corpus_of(lengths): document i has lengths[i] ids, counting on through the corpus."""

    def make(lengths: Sequence[int], *, shard_bytes: int = 1 << 28) -> Corpus:
        directory: Path = tmp_path_factory.mktemp("corpus")
        ends = [0, *itertools.accumulate(lengths)]
        lines = [json.dumps({"text": json.dumps(pair)}) for pair in itertools.pairwise(ends)]
        (directory / "in.jsonl").write_text("\n".join(lines))
        source = jsonl(directory / "in.jsonl")
        return write(source, directory / "out", encoder=Counting(), shard_bytes=shard_bytes)

    return make


@pytest.fixture(scope="session")
def bpe(tmp_path_factory):
    """A byte-level BPE tokenizer trained on this package's sources."""
    sources = sorted(Path(dovetail_data.__file__).parent.rglob("*.py"))
    texts = (path.read_text() for path in sources)
    return dovetail_data.train_bpe(texts, tmp_path_factory.mktemp("bpe"), vocab_size=700)


def pairs_of(batch) -> np.ndarray:
    """(token, target) of every slot that counts, in order of rows and slots."""
    counts = batch["mask"] > 0
    return np.stack([batch["tokens"][counts], batch["targets"][counts]], axis=1)


@pytest.fixture(scope="session")
def pairs():
    return pairs_of


@pytest.fixture
def written(tmp_path):
    """written(records, encoder): a corpus of them."""

    def make(records, encoder, name="in.jsonl") -> Corpus:
        folder = tmp_path / f"corpus-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / name).write_text("\n".join(map(json.dumps, records)))
        return write(jsonl(folder / name), folder / "out", encoder=encoder)

    return make


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory of its own as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capsys):
    """command(*argv): the exit code, and what was printed to standard output and error."""

    def call(*argv):
        try:
            code = cli.main(list(map(str, argv)))
        except SystemExit as stopped:
            code = stopped.code
        return (code, *capsys.readouterr())

    return call


FAULTS = ("fail", "hang", "cut", "flip")


class FaultyFileSystem(MemoryFileSystem):
    """The files of memory:// as faulty://: calls fail, hang, or return cut or changed bytes."""

    protocol = "faulty"
    rate: ClassVar[float] = 0.0
    faults: ClassVar[tuple[str, ...]] = FAULTS
    seen: ClassVar[list[str]] = []
    ends: ClassVar[threading.Event] = threading.Event()
    _random: ClassVar[random.Random] = random.Random(0)

    @classmethod
    def begin(cls, seed: int, *, rate: float, faults: tuple[str, ...] = FAULTS) -> None:
        cls._random, cls.rate, cls.faults = random.Random(seed), rate, faults
        cls.seen, cls.ends = [], threading.Event()

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("faulty://", "memory://"))

    def _fault(self, *, allowed: tuple[str, ...]) -> str:
        if self._random.random() >= self.rate:
            return ""
        fault = self._random.choice(self.faults)
        if fault not in allowed:
            return ""
        self.seen.append(fault)
        if fault == "fail":
            raise OSError("the network failed")
        if fault == "hang":
            self.ends.wait(120)  # until the test ends: longer than any deadline
        return fault

    def info(self, path, **options):
        self._fault(allowed=("fail", "hang"))
        return super().info(path, **options)

    def cat_file(self, path, start=None, end=None, **options):
        fault = self._fault(allowed=FAULTS)
        content = super().cat_file(path, start=start, end=end, **options)
        return _changed(content, fault, self._random)

    def put_file(self, lpath, rpath, **options):
        fault = self._fault(allowed=FAULTS)
        with open(lpath, "rb") as stream:
            content = stream.read()
        self.pipe_file(rpath, _changed(content, fault, self._random))


def _changed(content: bytes, fault: str, choose: random.Random) -> bytes:
    if not content or fault not in ("cut", "flip"):
        return content
    place = choose.randrange(len(content))
    if fault == "cut":
        return content[:place]
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


fsspec.register_implementation("faulty", FaultyFileSystem)


@pytest.fixture
def remote_files(tmp_path, monkeypatch):
    """The files of memory://. The cache is a directory of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("dovetail_data.sources._remote.BACKOFF_S", 0.001)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield MemoryFileSystem()
    MemoryFileSystem.store.clear()


@pytest.fixture
def faulty(remote_files, monkeypatch):
    """The class of faulty://. Calls go wrong after `begin`."""
    monkeypatch.setattr("dovetail_data.sources._remote.DEADLINE_S", 0.2)
    monkeypatch.setattr("dovetail_data.sources._remote.ATTEMPTS", 12)
    yield FaultyFileSystem
    FaultyFileSystem.ends.set()
    FaultyFileSystem.begin(0, rate=0)
