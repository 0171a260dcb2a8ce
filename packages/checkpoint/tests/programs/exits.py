# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts that end without closing their Store. `exits.py ROOT` prints how each of them ended.

Each ending is a forked child, which runs off the end of this script as a script of its own would.
The parent then restores what is there.
"""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Store
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.run import contents, writer
from dovetail_checkpoint.run.lock import LOCK

LIMIT_S = 1.0
HANG_S = 300.0
# Of the lines in which a loss or an error is said.
STARTS = ("ERROR:dovetail_checkpoint", "ValueError: the script", "RuntimeError: a ")


def values(step: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(step).normal(size=(400, 700)).astype(np.float32))


def saved(root: Path, *, encode: Callable = contents.encode) -> Store:
    """Begins a save that goes on after the end of the script: with `encode`, for its manifest."""
    store = Store(root)

    def encode_late(*items: object) -> dict:
        assert writer._ended.wait(timeout=HANG_S)
        return encode(*items)

    store.save(1, item=values(1))
    store.wait()
    contents.encode = encode_late
    store.save(2, item=values(2))
    limit = time.monotonic() + HANG_S
    while not (root / "2.orbax-checkpoint-tmp" / "item" / "_METADATA").exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
    return store


def end(root: Path) -> None:
    saved(root)


def error(root: Path) -> None:
    saved(root)
    raise ValueError("the script's own error")


def exits(root: Path) -> None:
    saved(root)
    sys.exit(3)


def closed_late(root: Path) -> None:
    atexit.register(saved(root).close)


def saved_late(root: Path) -> None:
    store = saved(root)
    atexit.register(lambda: store.save(3, item=values(3)))


def full(root: Path) -> None:
    """The disk is full for the checksums alone."""

    def fail(_: Path) -> None:
        hashing.set()
        assert writer._ended.wait(timeout=HANG_S)
        raise OSError(28, "No space left on device")

    hashing = threading.Event()
    store = Store(root)
    store.save(1, item=values(1))
    store.wait()
    checksums.write = fail
    store.save(2, item=values(2))
    assert hashing.wait(timeout=HANG_S)


def unwritten(root: Path) -> None:
    """Nothing of the last step is committed."""

    def fail(*_: object) -> None:
        raise ValueError("a digest failed")

    saved(root, encode=fail)


def stuck(root: Path) -> None:
    """The file system hangs; the bound of the wait is short."""
    hashing, said = threading.Event(), threading.Event()
    store = Store(root, timeout_s=HANG_S)
    store.save(1, item=values(1))
    store.wait()
    handler = logging.Handler()
    handler.emit = lambda _: said.set()
    logging.getLogger("dovetail_checkpoint").addHandler(handler)
    checksums.write = lambda _: hashing.set() or said.wait()  # or the process would hang with it
    store.save(2, item=values(2))
    assert hashing.wait(timeout=HANG_S)
    saving = writer.writer_of(root)._saving
    assert saving.limit_s == HANG_S
    saving.limit_s = LIMIT_S  # of the wait alone: on a busy machine a write takes longer


def forked(root: Path) -> None:
    """The child waits for nothing, since the save is its parent's, and may not write."""
    store = saved(root)
    if os.fork():
        os.wait()
        return
    store.wait()
    for each in (store, Store(root)):
        try:
            each.save(3, item=np.arange(4.0))
        except RuntimeError as error:
            print(f"RuntimeError: {error}", file=sys.stderr, flush=True)
        each.close()
    assert (root / LOCK).exists()
    threading._shutdown()  # runs the hooks of a script's end
    # Not TensorStore's own: it may wait for a lock that a thread of the parent held at the fork.
    os._exit(0)


ENDINGS = (end, error, exits, closed_late, saved_late, full, unwritten, stuck, forked)


def restored(root: Path) -> None:
    for ending in ENDINGS:
        store = Store(root / ending.__name__)
        step, items = store.restore(item=values(0))
        assert np.array_equal(items["item"], values(step))
        assert store.report.steps[0].verified, store.report
        hashed = [saved.step for saved in store.steps() if saved.has_checksums]
        assert not (root / ending.__name__ / LOCK).exists()
        print(f"restored {step}, hashed {hashed}", flush=True)


def main(root: Path) -> None:
    for ending in ENDINGS:
        heard, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(heard)
            os.dup2(tell, 2)
            os.close(tell)
            ending(root / ending.__name__)
            return
        os.close(tell)
        with os.fdopen(heard) as lines:
            said = [line.strip() for line in lines if line.startswith(STARTS)]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"{ending.__name__}: {code}", *said, sep=" | ", flush=True)
    restored(root)


main(Path(sys.argv[1]))
