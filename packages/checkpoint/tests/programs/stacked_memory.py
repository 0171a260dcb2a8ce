# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prints what a stacked load needs beside its result, in leaves: the peak of anonymous memory."""

import ctypes
import gc
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Store, load, stack

LAYERS, SHAPE = 12, (1024, 2048)
LEAF_BYTES = 4 * SHAPE[0] * SHAPE[1]
M_MMAP_THRESHOLD = -3


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def excess(work) -> int:
    """The most anonymous memory during `work`, beyond what there is with its result alone."""
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            gc.collect()  # Orbax's reference cycles hold leaves until then
            most[0] = max(most[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = work()
    done.set()
    watcher.join()
    gc.collect()
    held = anonymous_bytes()
    del result
    return max(most[0] - held, 0)


def main(root: Path) -> None:
    # Else malloc keeps what was freed, and the peak would count it.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    with Store(root) as store:
        store.save(1, item=[values] * LAYERS)
    target = {"w": jax.ShapeDtypeStruct((LAYERS, *SHAPE), jnp.float32)}

    def work() -> jax.Array:
        found = load(root / "1", target, rules=[stack("#", "w")], group_bytes=2 * LEAF_BYTES)
        return jax.block_until_ready(found["w"])

    work()  # compiles
    gc.collect()
    gc.freeze()  # what is there now need not be looked through again
    print(excess(work) / LEAF_BYTES)


main(Path(sys.argv[1]))
