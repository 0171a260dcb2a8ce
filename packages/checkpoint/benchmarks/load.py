# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the layers of a step stacked: ours, against plain Orbax followed by jax.numpy.stack.

Each load is a process of its own, which returns freed memory at once, so that the peak is what was
held and not what malloc keeps. Peak: anonymous memory beyond what the imported libraries hold, in
results. Ours also proves each leaf. The limit is the result itself, and one read of the files.
"""

import ctypes
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp

from dovetail_checkpoint import Store, load, stack
from measure import report, rounds

LAYERS, SHAPE, GROUP_BYTES = 16, (1024, 4096), 64 << 20
RESULT_BYTES = 4 * LAYERS * SHAPE[0] * SHAPE[1]
REPEATS = 5
M_MMAP_THRESHOLD = -3


def ours(step: Path) -> jax.Array:
    target = {"w": jax.ShapeDtypeStruct((LAYERS, *SHAPE), jnp.float32)}
    return load(step, target, rules=[stack("#", "w")], group_bytes=GROUP_BYTES)["w"]


def peer(step: Path) -> jax.Array:
    leaf = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=jnp.zeros(()).sharding)
    return jnp.stack(ocp.load(str(step), [leaf] * LAYERS, checkpointable_name="item"))


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def measured(work: Callable[[], jax.Array]) -> dict[str, float]:
    """Seconds, and the most anonymous memory while `work` ran."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    before, most, done = anonymous_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(work())
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    done.set()
    watcher.join()
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak": (most - before) / RESULT_BYTES}


def in_process(way: str, step: Path) -> dict[str, float]:
    line = [sys.executable, __file__, way, str(step)]
    done = subprocess.run(line, env=os.environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        rng = np.random.default_rng(0)
        with Store(root) as store:
            layers = [rng.normal(size=SHAPE).astype(np.float32) for _ in range(LAYERS)]
            store.save(1, item=layers)
        step = Path(root) / "1"
        assert np.array_equal(ours(step), peer(step))
        ways = {"ours": "ours", "peer": "peer", "peer again": "peer"}
        found = rounds(
            {name: (lambda w=way: in_process(w, step)) for name, way in ways.items()},
            repeats=REPEATS,
        )
    for metric, unit in (("peak", "results"), ("wall_s", "s"), ("cpu_s", "s")):
        values = {name: [each[metric] for each in found[name]] for name in found}
        report(
            f"{LAYERS} layers of 16 MiB, stacked; first load of a process",
            metric=metric,
            unit=unit,
            values=values["ours"],
            peer="orbax-checkpoint",
            peer_values=values["peer"],
            peer_again=values["peer again"],
            group_results=GROUP_BYTES / RESULT_BYTES,
        )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        logging.disable(logging.WARNING)
        way = {"ours": ours, "peer": peer}[sys.argv[1]]
        print(json.dumps(measured(lambda: way(Path(sys.argv[2])))))
    else:
        main()
