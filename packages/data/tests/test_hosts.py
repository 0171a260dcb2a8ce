# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing on the workers of Ray, most of it on one local Ray that these tests share."""

import gzip
import hashlib
import json
import logging
import os
import random
import resource
import select
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from dovetail_data import Bytes, Text, jsonl, text, write

ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python")
HANG_S = 300  # only a program that never ends takes this long
CUT = {"_CHUNK_BYTES": 20_000, "_LARGE_BYTES": 40_000, "_SLICE_RECORDS": 7}

# A driver that prints a line after each task and waits for an answer, and whose encoder may hang.
PROGRAM = """
import os, sys, threading
import dovetail_data.writing.workers
from dovetail_data import Bytes, Text, text, write
from dovetail_data.writing.hosts import Hosts

class Hanging(Text):
    def __call__(self, records):
        with open(fifo, "w") as begun:
            begun.write(".")
            begun.flush()
            threading.Event().wait()

def proceed(event):
    print(event.documents, flush=True)
    sys.stdin.readline()

fifo = sys.argv[3] if sys.argv[3:] else None
if __name__ == "__main__":
    dovetail_data.writing.workers._CHUNK_BYTES = 20_000
    lines = Hosts.lines  # a full shard is in the ledger before the next line is printed
    Hosts.lines = lambda self, *, wait: lines(self, wait=True)
    encoder = Hanging(Bytes()) if fifo else Text(Bytes())
    address = os.environ.get("ADDRESS")
    write(text(sys.argv[1]), sys.argv[2], encoder=encoder, shard_bytes=20_000, hosts=2, ray=address,
          progress=proceed)
"""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """The address of a local Ray of two CPUs, to which this process is connected."""
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    terminate = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # Ray forks its daemons beside the threads of JAX that other tests have left. They exec.
        warnings.filterwarnings("ignore", ".*is multi-threaded", DeprecationWarning)
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        for name, value in environment.items():
            patch.setenv(name, value)
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        ray.init("local", num_cpus=2, include_dashboard=False, **quiet)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the encoders below
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()
    signal.signal(signal.SIGTERM, terminate)


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    for name, value in CUT.items():
        monkeypatch.setattr(f"dovetail_data.writing.workers.{name}", value)


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """61 texts. The last 20 are empty, so the last of many shards is without a document."""
    directory = tmp_path_factory.mktemp("tree")
    rng = random.Random(0)
    for i in range(61):
        words = [rng.choice(["lorem", "ipsum", "día", "\n"]) for _ in range(rng.randrange(3000))]
        (directory / f"{i:03}.txt").write_text(" ".join(words) if i < 41 else "")
    return directory


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """JSON lines, plain and compressed, with three damaged records."""
    directory = tmp_path_factory.mktemp("lines")
    rng = random.Random(1)
    texts = [json.dumps({"text": f"{i} " * rng.randrange(1, 300)}) for i in range(301)]
    texts[3], texts[150], texts[250] = "{", '{"text": null}', "]"
    (directory / "a.jsonl").write_text("\n".join(texts[:99]))
    content = "\n".join(texts[99:]).encode()
    (directory / "b.jsonl.gz").write_bytes(gzip.compress(content, 0, mtime=0))  # large: in slices
    return directory


@pytest.mark.capability("writing of shards on many hosts, with the bytes of one process")
@pytest.mark.parametrize("hosts, shard_bytes", [(1, 90_000), (2, 90_000), (3, 1), (2, 1 << 28)])
def test_texts(tree, tmp_path, hosts, shard_bytes):
    options = {"encoder": Text(Bytes()), "shard_bytes": shard_bytes}
    one, many = [], []
    write(text(tree), tmp_path / "one", progress=one.append, **options)
    write(text(tree), tmp_path / "many", hosts=hosts, progress=many.append, **options)
    assert digests(tmp_path / "many") == digests(tmp_path / "one")
    assert many == one
    assert len(many) > 5


@pytest.mark.capability("writing of shards on many hosts, with the bytes of one process")
@pytest.mark.parametrize("hosts", [1, 3])
def test_lines_with_a_tokenizer_and_damaged_records(lines, bpe, tmp_path, hosts):
    options = {"encoder": Text(bpe), "shard_bytes": 30_000, "max_corrupt": 3}
    one = write(jsonl(lines), tmp_path / "one", **options)
    many = write(jsonl(lines), tmp_path / "many", hosts=hosts, **options)
    assert digests(tmp_path / "many") == digests(tmp_path / "one")
    assert [(record.where, record.error) for record in many.corrupt] == [
        (record.where, record.error) for record in one.corrupt
    ]
    assert len(many._paths) > 3


def failed(call) -> tuple[type, str]:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the messages are compared)
        call()
    return caught.type, str(caught.value)


@pytest.mark.thorough
def test_too_many_damaged_records_end_it_as_they_end_one_process(lines, tmp_path):
    options = {"encoder": Text(Bytes()), "shard_bytes": 20_000, "max_corrupt": 1}
    source = jsonl(lines)
    one = failed(lambda: write(source, tmp_path / "one", **options))
    many = failed(lambda: write(source, tmp_path / "many", hosts=2, **options))
    assert many == one
    assert "b.jsonl.gz:52" in many[1]
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("one", "many")]
    assert ledgers[0] == ledgers[1]
    options["max_corrupt"] = 3
    write(source, tmp_path / "one", **options)
    write(source, tmp_path / "many", hosts=2, **options)  # goes on
    assert digests(tmp_path / "many") == digests(tmp_path / "one")


class Wrong(Text):
    """Fails at one document, with an id outside the vocabulary."""

    def __call__(self, records):
        documents = super().__call__(records)
        for record, document in zip(records, documents, strict=True):
            if str(record["text"]).startswith("200 "):
                document.arrays["tokens"][1] = 300
        return documents


def test_an_error_in_a_worker_has_its_type_message_and_document(lines, tmp_path):
    options = {"encoder": Wrong(Bytes()), "max_corrupt": 3}
    one = failed(lambda: write(jsonl(lines), tmp_path / "one", **options))
    many = failed(lambda: write(jsonl(lines), tmp_path / "many", hosts=2, **options))
    assert many == one
    assert many[0] is ValueError
    assert many[1].startswith("b.jsonl.gz:102: each value of tokens must lie in [0, 257]: got 300")


class Dying(Text):
    """Kills its process at most `times`, counted by files."""

    def __init__(self, folder, times):
        super().__init__(Bytes())
        self.folder, self.times = folder, times

    def __call__(self, records):
        deaths = len(list(self.folder.iterdir()))
        if deaths < self.times:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(records)


@pytest.mark.capability("writing of shards on many hosts, killed")
def test_the_work_of_a_worker_that_dies_is_done_again(tree, tmp_path):
    (tmp_path / "deaths").mkdir()
    options = {"encoder": Text(Bytes()), "shard_bytes": 90_000}
    write(text(tree), tmp_path / "one", **options)
    options["encoder"] = Dying(tmp_path / "deaths", 1)
    write(text(tree), tmp_path / "many", hosts=1, **options)
    assert digests(tmp_path / "many") == digests(tmp_path / "one")
    assert len(list((tmp_path / "deaths").iterdir())) == 1


def test_a_worker_that_always_dies_is_an_error(tree, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.hosts._RETRIES", 0)
    (tmp_path / "deaths").mkdir()
    message = (
        r"each worker must live until the corpus is written: got hosts=1 with one dead in each of "
        r"1 runs of 000.txt \(WorkerCrashedError\). Give each worker more memory"
    )
    with pytest.raises(RuntimeError, match=message):
        write(text(tree), tmp_path / "c", encoder=Dying(tmp_path / "deaths", 99), hosts=1)


class Stuck(Text):
    """Never ends, except for the first texts."""

    def __call__(self, records):
        if records[0]["text"] != self.first:
            threading.Event().wait()
        return super().__call__(records)


@pytest.mark.thorough("it waits for Ray")
def test_a_write_that_ends_early_leaves_no_task_to_ray(tree, tmp_path):
    encoder = Stuck(Bytes())
    encoder.first = (tree / "000.txt").read_text()

    def stop(event):
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        write(text(tree), tmp_path / "c", encoder=encoder, hosts=2, progress=stop)
    both = ray.remote(num_cpus=2)(digests)
    assert ray.get(both.remote(tree), timeout=HANG_S)


def limit_files(limit_bytes: int) -> None:
    sys.dont_write_bytecode = limit_bytes != resource.RLIM_INFINITY  # it would be cut, too
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


class Limited(Text):
    """Limits the files of its worker to 100 bytes: a disk that is full."""

    def __call__(self, records):
        documents = super().__call__(records)
        limit_files(100)
        return documents


@pytest.mark.thorough
def test_a_full_disk_of_a_worker_has_the_advice_of_one_process(tree, tmp_path):
    message = r"the disk must take the corpus: got .*File too large.*from 0 finished shards"
    with pytest.raises(OSError, match=message):
        write(text(tree), tmp_path / "c", encoder=Limited(Bytes()), hosts=1)
    write(text(tree), tmp_path / "one", encoder=Text(Bytes()))
    lift = ray.remote(num_cpus=1)(limit_files).remote
    ray.get([lift(resource.RLIM_INFINITY) for _ in range(4)])
    write(text(tree), tmp_path / "c", encoder=Text(Bytes()), hosts=2)
    assert digests(tmp_path / "c") == digests(tmp_path / "one")


def test_another_address_than_the_connected_one_is_an_error(tree, cluster, tmp_path):
    options = {"encoder": Text(Bytes()), "hosts": 1}
    message = rf"connected to: got ray='10.0.0.1:1', it is connected to '{cluster}'. Call ray.shut"
    with pytest.raises(ValueError, match=message):
        write(text(tree), tmp_path / "c", ray="10.0.0.1:1", **options)
    write(text(tree), tmp_path / "c", ray=cluster, **options)
    assert ray.is_initialized()


def start(*arguments, **environment) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, env={**os.environ, **environment}, **pipes)


def staged_behind_a_shard(directory: Path) -> list[Path]:
    """The staged files, once the ledger has a shard."""
    shards = (directory / "ledger.jsonl").read_text().count("\n") - 1
    return sorted((directory / "staged").glob("*/*-??????")) if shards else []


@pytest.mark.thorough
@pytest.mark.capability("writing of shards on many hosts, killed")
def test_a_killed_driver_goes_on_from_what_workers_finished(tree, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.workers._LARGE_BYTES", 1 << 25)  # as in the program
    monkeypatch.setattr("dovetail_data.writing.workers._SLICE_RECORDS", 1024)
    source, options = text(tree), {"encoder": Text(Bytes()), "shard_bytes": 20_000}
    one, left = [], []
    write(source, tmp_path / "one", progress=one.append, **options)
    many = tmp_path / "many"
    with start(tree, many, ADDRESS=cluster) as driver:
        while driver.stdout.readline() and not (staged := staged_behind_a_shard(many)):
            driver.stdin.write("\n")
            driver.stdin.flush()
        driver.kill()
    assert staged
    assert not (many / "index.json").exists()
    whole = staged[0].read_bytes()
    staged[0].write_bytes(whole[:-1])  # as a crash of its host may leave it
    write(source, tmp_path / "many", hosts=2, progress=left.append, **options)
    assert digests(tmp_path / "many") == digests(tmp_path / "one")
    assert 0 < len(left) < len(one)
    assert left == one[-len(left) :]


@pytest.mark.thorough
@pytest.mark.capability("writing of shards on many hosts, killed")
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_driver(tree, cluster, tmp_path, kill):
    os.mkfifo(tmp_path / "begun")
    begun = os.open(tmp_path / "begun", os.O_RDONLY | os.O_NONBLOCK)
    with start(tree, tmp_path / "c", tmp_path / "begun", ADDRESS=cluster) as driver:
        count = 0
        while count < 2:  # both workers are at work
            assert select.select([begun], [], [], HANG_S)[0]
            count += len(os.read(begun, 2 - count))
        driver.send_signal(kill)
        driver.communicate(timeout=HANG_S)
        assert driver.returncode == -kill
    assert select.select([begun], [], [], HANG_S)[0]
    assert os.read(begun, 1) == b""  # its end: no worker has it open any more
    os.close(begun)
