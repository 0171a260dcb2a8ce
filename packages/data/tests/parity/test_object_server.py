# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Corpora and sources on an object server of this machine: moto's S3, through s3fs."""

import pickle

import numpy as np
import pytest

from dovetail_data import Bytes, Corpus, Text, batches, jsonl, pack, records, text, verify, write

moto = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")

pytestmark = pytest.mark.parity


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The URL of a new bucket. The environment names the server, for worker processes too."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    s3fs.S3FileSystem.clear_instance_cache()
    name = tmp_path.name.replace("_", "-")
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.mark.capability("corpora at s3://, gs:// and hf:// URLs")
def test_a_corpus_on_an_object_server_is_the_local_one(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 500)
    for i in range(40):
        (tmp_path / f"{i:02d}.txt").write_text(f"text {i} " * (1 + i % 7) * 9)
    source = text(tmp_path)
    options = {"encoder": Text(Bytes()), "shard_bytes": 4000}
    expected = write(source, tmp_path / "local", **options)
    written = write(source, f"{bucket}/run/corpus", **options)
    assert written.fingerprint == expected.fingerprint
    files = s3fs.S3FileSystem().find(f"{bucket}/run/corpus")
    assert sorted(path.rpartition("/")[2] for path in files) == sorted(
        path.name for path in expected.directory.iterdir()
    )
    corpus = Corpus(f"{bucket}/run/corpus", cache=tmp_path / "cache2", cache_bytes=1 << 19)
    order = np.random.default_rng(0).permutation(len(corpus))
    for mine, theirs in zip(corpus.read(order), expected.read(order), strict=True):
        np.testing.assert_array_equal(mine["tokens"], theirs["tokens"])
    assert verify(f"{bucket}/run/corpus").bytes == verify(expected.directory).bytes
    assert corpus.retries == 0
    assert len(pickle.loads(pickle.dumps(corpus))[3]["tokens"])
    rows = pack(corpus, length=32, seed=0)
    with_workers = batches(rows, global_batch=4, seed=0, workers=1)
    local = batches(pack(expected, length=32, seed=0), global_batch=4, seed=0)
    try:
        assert np.array_equal(next(with_workers)["tokens"], next(local)["tokens"])
    finally:
        with_workers.close()


def test_sources_on_an_object_server(bucket):
    files = s3fs.S3FileSystem()
    files.pipe_file(f"{bucket}/in/deep/a.jsonl", b'{"text": "one"}\n{"text": "two"}\n')
    files.pipe_file(f"{bucket}/in/b.jsonl", b'{"text": "zero"}\n')
    source = jsonl(f"{bucket}/in")
    assert [file.name for file in source.files] == ["b.jsonl", "deep/a.jsonl"]
    assert [record["text"] for record in records(source)] == ["zero", "one", "two"]
    corpus = write(source, f"{bucket}/out", encoder=Text(Bytes()))
    assert len(corpus) == 3
    with pytest.raises(ValueError, match="a source must exist: got path='s3://"):
        jsonl(f"{bucket}/none.jsonl")
    with pytest.raises(ValueError, match=r"must be finished: got s3://.*/in without index"):
        Corpus(f"{bucket}/in")
