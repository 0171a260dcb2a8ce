# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a run that another process saves and that keeps one step. `beside.py ROOT READS`.

Each read must return a whole step, and call no step damaged. The last line also says how often
steps were listed again, since the writer had deleted the step that was being read.
"""

import os
import sys
import threading
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Retention, Store, verify
from dovetail_checkpoint.paths import verifying
from dovetail_checkpoint.run import steps, store

SHAPE = (120, 90)


def values(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=SHAPE).astype(np.float32)


def save_until_told(root: Path, stop: int, tell: int) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (os.read(stop, 1), ended.set()), daemon=True).start()
    with Store(root, retention=Retention(latest=1)) as store:
        step = 0
        while not ended.is_set():
            step += 1
            store.save(step, item=jnp.asarray(values(step)))
            if step == 1:
                store.wait()
                os.write(tell, b"1")


def read(root: Path, counts: Counter, number: int) -> None:
    """Restores, and in every tenth read verifies the whole run."""
    store = Store(root)
    step, items = store.restore(item=jax.ShapeDtypeStruct(SHAPE, jnp.float32))
    whole = np.asarray(items["item"]).tobytes() == values(step).tobytes()
    counts["wrong"] += not whole
    counts["called damaged"] += sum(bool(tried.problems) for tried in store.report.steps)
    if number % 10 == 0:
        counts["called damaged"] += sum(bool(tried.problems) for tried in verify(root).steps)
    counts["whole"] += whole


def main(root: Path, reads: int) -> None:
    (stop, stopping), (told, tell) = os.pipe(), os.pipe()
    process = os.fork()
    if process == 0:
        save_until_told(root, stop, tell)
        os._exit(0)
    os.read(told, 1)
    counts = Counter()

    def counted(directory: Path) -> bool:
        deleted = steps.was_deleted(directory)
        counts["listed again"] += deleted
        return deleted

    store.was_deleted = verifying.was_deleted = counted
    try:
        for number in range(reads):
            read(root, counts, number)
    finally:  # else a reader that fails leaves the writer running
        os.write(stopping, b"1")
        assert os.waitpid(process, 0)[1] == 0
    for name in ("whole", "wrong", "called damaged", "listed again"):
        print(f"{name}: {counts[name]}")


main(Path(sys.argv[1]), int(sys.argv[2]))
