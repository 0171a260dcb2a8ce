# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes checked at run time, two CPU devices, and corpora of any lengths."""

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

import forced_devices

os.environ.update(forced_devices.environment(2))  # before jax is imported
jaxtyping.install_import_hook("dovetail_data", "beartype.beartype")

import jax  # noqa: E402

import dovetail_data  # noqa: E402
from dovetail_data import Corpus, Document, cli, jsonl, write  # noqa: E402

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
