# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from typing import ClassVar

import numpy as np
import pytest

from dovetail_data import batches, pack

PROGRAM = """
import json, os, sys
import numpy as np
from dovetail_data import Corpus, batches, pack

def digest(batch):
    sums = [int(array.astype(np.int64).sum()) for array in batch.values()]
    return sums + batch["tokens"][:, 0].tolist()

if __name__ == "__main__":
    directory, state, steps, workers = sys.argv[1:]
    rows = pack(Corpus(directory), length=13, seed=0)
    it = batches(rows, global_batch=4, seed=1, epochs=None, workers=int(workers))
    if state:
        it.set_state(json.loads(state))
    for _ in range(int(steps)):
        print(json.dumps([digest(next(it)), it.get_state()]), flush=True)
        sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def rows(corpus_of):
    lengths = np.random.default_rng(0).integers(2, 30, 57).tolist()
    return pack(corpus_of(lengths), length=13, seed=0)


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


@pytest.mark.parametrize("epochs", [None, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing_but_when_it_is_read(rows, threads, epochs):
    plain = batches(rows, global_batch=4, seed=1, epochs=epochs)
    ahead = batches(rows, global_batch=4, seed=1, epochs=epochs, threads=threads)
    for _ in range(len(plain) if epochs else 40):
        assert ahead.get_state() == plain.get_state()
        same(next(ahead), next(plain))
    if epochs:
        with pytest.raises(StopIteration):
            next(ahead)
    ahead.close()


def test_a_state_is_that_of_the_delivered_batch_while_others_wait(rows):
    plain = batches(rows, global_batch=4, seed=1)
    ahead = batches(rows, global_batch=4, seed=1, threads=2)
    same(next(ahead), next(plain))
    ahead._ahead._pending[-1][1].result()  # the queue is full of later batches
    assert ahead.get_state() == plain.get_state()
    back = ahead.get_state()
    expected = [next(ahead) for _ in range(3)]
    ahead.set_state(back)
    for batch in expected:
        same(next(ahead), batch)
    ahead.close()


def test_an_error_comes_with_the_batch_that_has_it_and_can_be_tried_again(rows):
    class Failing(type(rows)):
        broken = True

        def batch(self, numbers, **options):
            if self.broken and 3 in numbers:
                raise OSError("the disk is away")
            return super().batch(numbers, **options)

    failing = Failing(rows.corpus, rows._table, length=13, whole=False)
    plain = batches(rows, global_batch=4, seed=None)
    ahead = batches(failing, global_batch=1, seed=None, threads=2)
    got = [next(ahead)["tokens"] for _ in range(3)]
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is away"):
            next(ahead)
    assert ahead.get_state()["row"] == 3
    failing.broken = False
    got.append(next(ahead)["tokens"])
    np.testing.assert_array_equal(np.concatenate(got), next(plain)["tokens"])
    ahead.close()


def test_batches_that_cross_a_block_of_the_order(rows, monkeypatch):
    expected = list(batches(rows, global_batch=4, seed=1, epochs=2))
    monkeypatch.setattr("dovetail_data.batching.reader._BLOCK_PLACES", 6)
    for batch, wanted in zip(
        batches(rows, global_batch=4, seed=1, epochs=2), expected, strict=True
    ):
        same(batch, wanted)


def test_nothing_is_read_beyond_the_end(rows):
    class Recording(type(rows)):
        counts: ClassVar[list[int]] = []

        def batch(self, numbers, **options):
            self.counts.append(len(numbers))
            return super().batch(numbers, **options)

    recording = Recording(rows.corpus, rows._table, length=13, whole=False)
    it = batches(recording, global_batch=4, seed=1, epochs=1, threads=2)
    list(it)
    it.close()
    assert sum(recording.counts) == len(rows)
    assert min(recording.counts) > 0


@pytest.mark.thorough
def test_threads_end_with_their_iterator(rows):
    def ours():
        return {thread for thread in threading.enumerate() if thread.name.startswith("batches")}

    before = ours()
    it = batches(rows, global_batch=4, seed=1, threads=2)
    next(it)
    started = ours() - before
    assert started
    del it
    gc.collect()
    for thread in started:
        thread.join(timeout=300)
    assert not started & ours()


def start(program, rows, *, state, steps, workers):
    command = [sys.executable, program, rows.corpus.directory, state, str(steps), str(workers)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.thorough
def test_processes_resume_after_a_kill_with_full_queues(rows, program):
    with start(program, rows, state="", steps=12, workers=0) as plain:
        output, _ = plain.communicate("\n" * 12)
    expected = [json.loads(line) for line in output.splitlines()]
    with start(program, rows, state="", steps=12, workers=2) as killed:
        lines = []
        for _ in range(5):
            lines.append(json.loads(killed.stdout.readline()))
            killed.stdin.write("\n")
            killed.stdin.flush()
        os.kill(killed.pid, signal.SIGKILL)
    lines = lines[:3]  # a checkpoint of two steps ago
    with start(program, rows, state=json.dumps(lines[-1][1]), steps=9, workers=2) as resumed:
        output, _ = resumed.communicate("\n" * 9)
    assert lines + [json.loads(line) for line in output.splitlines()] == expected
    assert len(expected) == 12


@pytest.mark.thorough
def test_a_worker_that_dies_is_an_error(rows, program, tmp_path):
    dying = PROGRAM.replace("    rows = pack(", "    np.zeros\n    rows = Dying.of(").replace(
        "def digest",
        "class Dying:\n"
        "    @staticmethod\n"
        "    def of(corpus, **options):\n"
        "        return pack(corpus, **options).map(die)\n\n"
        "def die(row, rng):\n    os._exit(3)\n\n"
        "def digest",
    )
    path = tmp_path / "dying.py"
    path.write_text(dying)
    command = [sys.executable, path, rows.corpus.directory, "", "2", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, input="")
    message = run.stderr.strip().splitlines()[-1]
    assert message.startswith("RuntimeError: each worker must live as long as its iterator: got")
    assert "or pass fewer workers if memory ran out." in message
