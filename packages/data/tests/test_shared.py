# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gc
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail_data.batching import shared as _shared
from dovetail_data.batching.shared import Exchange, Sender, Sent, send

ARRAYS = {
    "tokens": np.random.default_rng(0).integers(0, 1 << 30, (70, 301), np.int32),
    "mask": np.random.default_rng(1).random((70, 301), np.float32),
    "turned": np.arange(12.0).reshape(3, 4).T[::2],
    "empty": np.zeros((0, 5), np.int32),
}


def batch(start):
    return {name: array + start for name, array in ARRAYS.items()}, ["beside", start]


@pytest.fixture
def exchange():
    made = Exchange()
    yield made
    made.close()


def test_arrays_arrive_as_they_were_and_leave_no_name(exchange):
    sent = Sender(batch, exchange.directory)(1)
    assert isinstance(sent, Sent)
    assert len(os.listdir(exchange.directory)) == 1
    assert len(sent.pickled) < 1000
    arrays, beside = sent.receive()
    assert os.listdir(exchange.directory) == []
    assert beside == ["beside", 1]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array + 1)
        assert arrays[name].dtype == array.dtype
    arrays["tokens"] += 1  # a batch belongs to the one who received it
    np.testing.assert_array_equal(arrays["tokens"], ARRAYS["tokens"] + 2)


def test_little_goes_as_it_is(exchange):
    value = {"labels": np.arange(5)}
    assert send(value, exchange.directory) is value
    assert os.listdir(exchange.directory) == []


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="mapped files are read from /proc")
def test_the_memory_is_freed_with_the_last_array(exchange):
    value = Sender(batch, exchange.directory)(0).receive()
    tokens = value[0]["tokens"]
    path = f"{exchange.directory}/"

    def mapped():
        return sum(path in line for line in Path("/proc/self/maps").read_text().splitlines())

    assert mapped() == 1
    del value
    gc.collect()
    np.testing.assert_array_equal(tokens, ARRAYS["tokens"])
    del tokens
    gc.collect()
    assert mapped() == 0


def test_without_room_it_goes_as_it_is_and_says_so(exchange, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_shared.os, "posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        arrays, _ = Sender(batch, exchange.directory)(3)
        Sender(batch, exchange.directory)(4)
    np.testing.assert_array_equal(arrays["tokens"], ARRAYS["tokens"] + 3)
    assert os.listdir(exchange.directory) == []
    (message,) = caplog.messages
    assert "No space left on device; batches pass through a slower pipe. Give it more" in message


def test_the_directory_goes_with_its_owner():
    exchange = Exchange()
    directory = Path(exchange.directory)
    Sender(batch, exchange.directory)(0)
    assert directory.exists()
    del exchange
    gc.collect()
    assert not directory.exists()


PROGRAM = """
import sys
import numpy as np
from dovetail_data.corpus.processes import Processes
from dovetail_data.batching.shared import Exchange, Sender

def work(n):
    return np.zeros(n)

if __name__ == "__main__":
    exchange = Exchange()
    processes = Processes(Sender(work, exchange.directory), 1, scratch=exchange.directory)
    processes.submit(1 << 20).result()
    print(exchange.directory, flush=True)
    if sys.argv[1:]:
        sys.stdin.readline()
    processes.close(wait=True)
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_nothing_stays_behind_a_process_that_ends(tmp_path, end):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", *(["wait"] if end == "kill" else [])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        directory = Path(program.stdout.readline().strip())
        if end == "kill":
            assert len(os.listdir(directory)) == 1
            program.kill()
        program.communicate(timeout=300)  # until the worker, which holds the pipe, has ended too
    assert not directory.exists()
