# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gc
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import forced_devices
from dovetail_data import batches, pack, to_device

HANG_S = 300  # only what never comes takes this long


@pytest.fixture(scope="module")
def rows(corpus_of):
    lengths = np.random.default_rng(0).integers(2, 30, 57).tolist()
    return pack(corpus_of(lengths), length=13, seed=0)


@pytest.fixture(scope="module")
def sharding():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(np.asarray(left[name]), np.asarray(right[name]))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_arrive_in_order_on_all_devices(rows, sharding, depth):
    expected = batches(rows, global_batch=4, seed=1, epochs=1)
    it = to_device(batches(rows, global_batch=4, seed=1, epochs=1), sharding, depth=depth)
    for wanted in expected:
        batch = next(it)
        same(batch, wanted)
        assert batch["tokens"].sharding == sharding
        assert batch["tokens"].addressable_shards[1].data.shape == (2, 13)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
    assert repr(it).startswith("DeviceBatches(Batches(TokenRows(")
    assert repr(it).endswith(f", depth={depth})")


@pytest.mark.parametrize("depth", [1, 3])
def test_the_state_is_that_of_the_batch_delivered_last(rows, sharding, depth):
    plain = batches(rows, global_batch=4, seed=1)
    it = to_device(batches(rows, global_batch=4, seed=1), sharding, depth=depth)
    assert it.get_state() == plain.get_state()
    for _ in range(5):
        same(next(it), next(plain))
        assert it.get_state() == plain.get_state()
    state, expected = it.get_state(), next(plain)
    next(it)
    next(it)
    it.set_state(state)
    assert it.get_state() == state
    same(next(it), expected)


class Failing:
    """Counts up; the third batch fails once."""

    def __init__(self):
        self.count, self.failures = 0, 1

    def __next__(self):
        if self.count == 2 and self.failures:
            self.failures -= 1
            raise OSError("disk gone")
        self.count += 1
        return {"tokens": np.full((2, 3), self.count, np.int32)}

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


def test_an_error_is_raised_in_its_place_and_skips_nothing(sharding):
    it = to_device(Failing(), sharding, depth=3)
    got = [int(next(it)["tokens"][0, 0]) for _ in range(2)]
    with pytest.raises(OSError, match="disk gone"):
        next(it)
    assert it.get_state() == {"count": 2}
    got += [int(next(it)["tokens"][0, 0]) for _ in range(2)]
    assert got == [1, 2, 3, 4]


def stack_of(thread):
    """The names of the functions that the thread is in."""
    frame, names = sys._current_frames()[thread], []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


@pytest.fixture
def interrupt():
    """Interrupts the main thread as Ctrl-C does, once however often it is called."""
    sent = []

    def raise_once(number, frame):
        sent.append(number)
        if len(sent) == 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_once)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_wait_skips_nothing(sharding, interrupt):
    class Interrupting(Failing):
        def __next__(self):
            if self.count == 2 and self.failures:
                self.failures -= 1
                main = threading.main_thread().ident
                while "wait" not in stack_of(main):  # for this batch
                    time.sleep(0)
                # It is interrupted, and goes back to its state, while this one is still reading.
                # A signal right before it sleeps does not wake it: it gets another.
                while "set_state" not in stack_of(main):
                    interrupt()
                    time.sleep(0.001)
            return super().__next__()

    it = to_device(Interrupting(), sharding, depth=1)
    got = [int(next(it)["tokens"][0, 0]) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        next(it)
    assert it.get_state() == {"count": 2}
    got += [int(next(it)["tokens"][0, 0]) for _ in range(3)]
    assert got == [1, 2, 3, 4, 5]


def test_a_refused_state_skips_nothing(rows, sharding):
    plain = batches(rows, global_batch=4, seed=1)
    it = to_device(batches(rows, global_batch=4, seed=1), sharding, depth=2)
    same(next(it), next(plain))
    with pytest.raises(ValueError, match="same seed"):
        it.set_state(batches(rows, global_batch=4, seed=2).get_state())
    same(next(it), next(plain))


def test_reading_goes_on_while_the_consumer_works(sharding):
    class Signalling(Failing):
        def __init__(self):
            super().__init__()
            self.failures = 0
            self.reached = threading.Event()

        def __next__(self):
            if self.count == 2:
                self.reached.set()
            return super().__next__()

    source = Signalling()
    it = to_device(source, sharding, depth=2)
    next(it)
    assert source.reached.wait(timeout=HANG_S)  # the third batch, though one was taken
    it.close()
    assert it.stats().batches == 1


def test_a_depth_below_one_is_an_error(rows, sharding):
    with pytest.raises(ValueError, match=r"depth must be >= 1: got depth=0. Pass 2"):
        to_device(batches(rows, global_batch=4, seed=1), sharding, depth=0)


def test_without_jax_it_says_what_to_install(rows, sharding, monkeypatch):
    monkeypatch.delitem(sys.modules, "dovetail_data.batching._ahead", raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"pip install 'dovetail-data\[device\]'"):
        to_device(batches(rows, global_batch=4, seed=1), sharding)


def test_dropping_it_ends_its_thread(rows, sharding):
    before = set(threading.enumerate())
    it = to_device(batches(rows, global_batch=4, seed=1), sharding, depth=3)
    next(it)
    (thread,) = set(threading.enumerate()) - before
    del it
    thread.join(timeout=HANG_S)
    assert not thread.is_alive()


PROGRAM = Path(__file__).parent / "programs/hosts.py"


def on_hosts(directory, count, *, devices, steps, state=""):
    """What `count` processes of `devices` devices each hold: per step (state, {name: shards})."""
    environment = forced_devices.environment(devices)
    with socket.socket() as held:
        # Nobody else gets the port meanwhile; the coordinator may, since it sets the option too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("localhost", 0))
        common = [str(count), str(held.getsockname()[1]), state, str(steps)]
        processes = [
            subprocess.Popen(
                [sys.executable, PROGRAM, directory, str(i), *common],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(count)
        ]
        outputs = [process.communicate(timeout=HANG_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count
    hosts = [[json.loads(line) for line in output.splitlines()] for output in outputs]
    merged = []
    for step in zip(*hosts, strict=True):
        assert len({json.dumps(state) for state, _ in step}) == 1
        names = step[0][1]
        shards = {name: sorted(shard for host in step for shard in host[1][name]) for name in names}
        merged.append([step[0][0], shards])
    return merged


@pytest.mark.thorough
def test_two_processes_hold_the_global_batches_of_one_and_go_on_from_its_state(rows):
    directory = str(rows.corpus.directory)
    alone = on_hosts(directory, 1, devices=4, steps=4)
    state = json.dumps(alone[1][0])
    assert on_hosts(directory, 2, devices=2, steps=2, state=state) == alone[2:]
    assert len(alone[0][1]["tokens"]) == 4


AT_EXIT = """
import jax
from pathlib import Path
from dovetail_data import Bytes, Text, batches, pack, text, to_device, write

Path("a.txt").write_text("To be, or not to be: that is the question.")
rows = pack(write(text("a.txt"), "corpus", encoder=Text(Bytes())), length=8)
ahead = batches(rows, global_batch=2, seed=0, threads=2)
sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
sent = to_device(batches(rows, global_batch=2, seed=0), sharding)
print(next(ahead)["tokens"].shape, next(sent)["tokens"].shape)
"""


@pytest.mark.thorough
def test_a_script_that_ends_with_open_iterators_prints_no_error(tmp_path):
    line = [sys.executable, "-c", AT_EXIT]
    run = subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (run.stdout, run.stderr) == ("(2, 8) (2, 8)\n", "")


class Stateless:
    """An iterator that fails when it is asked for its state."""

    def __next__(self):
        raise StopIteration

    def get_state(self):
        raise RuntimeError("no state")

    def set_state(self, state):
        raise AssertionError("not used")


def test_an_iterator_that_cannot_start_ends_quietly(sharding, monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(RuntimeError, match="no state"):
        to_device(Stateless(), sharding)
    gc.collect()
    assert ignored == []
