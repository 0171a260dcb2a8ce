# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import threading

import jax.numpy as jnp
import pytest

from dovetail_checkpoint import Retention, Store
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.run import writer
from dovetail_checkpoint.run.lock import LOCK, WriterLock
from dovetail_checkpoint.run.writer import writer_of


def test_the_lock_is_held_from_the_first_save_to_the_close(tmp_path):
    store = Store(tmp_path)
    assert store.restore(item=jnp.ones(3)) is None
    assert not (tmp_path / LOCK).exists()  # reading needs none
    store.save(1, item=jnp.ones(3))
    store.wait()
    assert (tmp_path / LOCK).exists()
    reader = Store(tmp_path)
    assert reader.restore(item=jnp.ones(3))[0] == 1
    reader.close()
    assert (tmp_path / LOCK).exists()
    store.close()
    assert not (tmp_path / LOCK).exists()
    store.save(2, item=jnp.ones(3))  # a closed store may be used again
    store.close()
    assert not (tmp_path / LOCK).exists()


def test_the_lock_goes_though_the_last_save_failed(tmp_path, monkeypatch):
    def fail(_):
        raise OSError("broken")

    monkeypatch.setattr(checksums, "write", fail)
    store = Store(tmp_path)
    store.save(1, item=jnp.ones(3))
    with pytest.raises(RuntimeError, match="broken"):
        store.close()
    assert not (tmp_path / LOCK).exists()


def test_two_stores_of_a_process_take_turns(tmp_path, monkeypatch):
    """The second waits for the save of the first, whose unfinished step it does not delete."""
    write, wait, waits = checksums.write, writer.wait, threading.Event()

    def write_late(directory):
        assert waits.wait(timeout=300)
        write(directory)

    def wait_told(*args, **options):
        waits.set()
        return wait(*args, **options)

    monkeypatch.setattr(checksums, "write", write_late)
    monkeypatch.setattr(writer, "wait", wait_told)
    first, second = Store(tmp_path), Store(tmp_path / "x" / "..")  # another name of the root
    first.save(1, item=jnp.ones(3))
    second.save(2, item=jnp.ones(3) * 2)
    with pytest.raises(ValueError, match="must be new, got step=2"):
        first.save(2, item=jnp.ones(3))
    second.close()
    assert (tmp_path / LOCK).exists()  # the first is open
    first.close()
    steps = first.steps()
    assert [(step.step, step.has_checksums) for step in steps] == [(1, True), (2, True)]
    assert not (tmp_path / LOCK).exists()


def test_a_store_that_was_dropped_keeps_no_lock(tmp_path):
    Store(tmp_path).save(1, item=jnp.ones(3))
    with Store(tmp_path) as store:
        store.save(2, item=jnp.ones(3))
    assert [step.step for step in store.steps()] == [1, 2]
    assert not (tmp_path / LOCK).exists()


def test_a_save_after_the_lock_was_lost_is_refused_and_deletes_nothing(tmp_path, monkeypatch):
    write = checksums.write

    def lose(directory):
        write(directory)
        (tmp_path / LOCK).rename(tmp_path / "lost")
        other.hold()

    other = WriterLock(tmp_path)
    store = Store(tmp_path, retention=Retention(latest=1))
    for step in (1, 2):
        store.save(step, item=jnp.ones(3))
        store.wait()
        if step == 1:
            monkeypatch.setattr(checksums, "write", lose)
    assert [step.step for step in store.steps()] == [1, 2]  # the retention is the other's now
    with pytest.raises(RuntimeError, match="must have one writer, got"):
        store.save(3, item=jnp.ones(3))
    store.close()
    assert other.is_held()
    other.release()


def test_each_root_has_its_own_writer(tmp_path):
    assert writer_of(tmp_path) is writer_of(tmp_path / "a" / "..")
    assert writer_of(tmp_path) is not writer_of(tmp_path / "a")
    for root in (tmp_path, tmp_path / "a"):
        Store(root).close()
