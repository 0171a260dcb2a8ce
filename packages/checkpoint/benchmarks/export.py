# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Export of a saved step to safetensors, against `safetensors.numpy.save_file`.

`save_file` writes arrays that are in memory already; from a step one restores them first, with
Orbax, and needs memory for all. Both are measured, with and without the fsync that makes the file
durable and that ours always does. Ours also proves each leaf as it is read. Everything is read from
the page cache. Memory is the growth of the anonymous memory of a process of its own (RssAnon).
"""

import json
import os
import shutil
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
from safetensors.numpy import save_file

from dovetail_checkpoint import Store
from dovetail_checkpoint.paths.export import export_safetensors
from measure import Cost, cost, report, rounds

REPEATS = 7
GROUP_BYTES = 128 << 20


def model(width: int, layers: int, vocabulary: int) -> dict[str, jax.Array]:
    """Random bfloat16 parameters of a decoder."""
    shapes = {"embed": (vocabulary, width), "head": (width, vocabulary)}
    for i in range(layers):
        for name, n in (("q", 1), ("k", 1), ("v", 1), ("o", 1), ("up", 3), ("gate", 3)):
            shapes[f"{i}.{name}"] = (width, n * width)
        shapes[f"{i}.down"] = (3 * width, width)
        shapes[f"{i}.norm"] = (width,)
    rng = np.random.default_rng(0)
    return {
        name: jnp.asarray(rng.integers(0, 2**16, shape, np.uint16)).view(jnp.bfloat16)
        for name, shape in shapes.items()
    }


def save_synced(arrays: dict[str, np.ndarray], path: Path) -> None:
    save_file(arrays, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def restored(step: Path) -> dict[str, np.ndarray]:
    """The model of a step by plain Orbax, on the host."""
    metadata = ocp.checkpointables_metadata(str(step)).metadata["model"]
    target = {name: np.empty(x.shape, x.dtype) for name, x in metadata.items()}
    return ocp.load_checkpointables(str(step), {"model": target})["model"]


def ways(step: Path, root: Path) -> dict[str, Callable[[], None]]:
    """What is compared: each writes a new place under `root`, which the caller deletes."""
    return {
        "ours": lambda: export_safetensors(step, root / "ours", group_bytes=GROUP_BYTES),
        "restore and save": lambda: save_file(restored(step), root / "x.safetensors"),
        "restore and save, synced": lambda: save_synced(restored(step), root / "x.safetensors"),
    }


def compare(case: str, step: Path, root: Path) -> None:
    arrays = restored(step)
    size = sum(x.nbytes for x in arrays.values())
    memory = {"save": lambda: save_file(arrays, root / "x.safetensors")}
    memory["save, synced"] = lambda: save_synced(arrays, root / "x.safetensors")
    calls = {**ways(step, root), **memory}
    calls |= {f"{name} again": call for name, call in calls.items() if name != "ours"}

    def timed(call: Callable[[], None]) -> Cost:
        found = cost(call)
        shutil.rmtree(root / "ours", ignore_errors=True)
        (root / "x.safetensors").unlink(missing_ok=True)
        return found

    found = rounds({n: (lambda c=c: timed(c)) for n, c in calls.items()}, repeats=REPEATS)
    for peer in ("save", "save, synced", "restore and save", "restore and save, synced"):
        rates = {n: [size / c.wall_s for c in costs] for n, costs in found.items()}
        report(
            f"{case}: export",
            metric="rate",
            unit="B/s",
            values=rates["ours"],
            peer="safetensors, orbax-checkpoint" if "restore" in peer else "safetensors",
            peer_values=rates[peer],
            peer_again=rates[f"{peer} again"],
            peer_call=peer,
            bytes=size,
            limit="the disk; from the page cache the copies: read, digest, write",
        )


def compare_memory(case: str, step: Path) -> None:
    # Else glibc keeps freed blocks of up to 32 MiB for each of TensorStore's threads, and the
    # figure is what once was needed, several times over (measured: up to 3.3 groups).
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}

    def peak(name: str) -> int:
        command = [sys.executable, __file__, name, str(step)]
        return json.loads(subprocess.check_output(command, env=environment))

    peaks = rounds(
        {name: (lambda n=name: peak(n)) for name in ("ours", "restore and save")}, repeats=3
    )
    report(
        f"{case}: export",
        metric="peak_memory",
        unit="B",
        values=peaks["ours"],
        peer="safetensors, orbax-checkpoint",
        peer_values=peaks["restore and save"],
        group_bytes=GROUP_BYTES,
        groups=max(peaks["ours"]) / GROUP_BYTES,
        malloc_mmap_threshold=1 << 20,
        limit="two groups",
    )


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel must tell RssAnon, got /proc/self/status without it; use Linux")


def peak_growth(call: Callable[[], None]) -> int:
    """How far the anonymous memory of this process grows during a call."""
    before, seen, done = anonymous_bytes(), [], threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.append(anonymous_bytes())
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    call()
    done.set()
    thread.join()
    return max(seen) - before


def measure_memory(name: str, step: Path) -> None:
    with tempfile.TemporaryDirectory() as root:
        small = Path(root) / "small"
        with Store(small) as store:  # what Orbax and XLA allocate once is not the export's
            store.save(0, model=model(64, 1, 128))
        ways(small / "0", Path(root))[name]()
        shutil.rmtree(Path(root) / "ours", ignore_errors=True)
        print(peak_growth(ways(step, Path(root))[name]))


def main() -> None:
    for case, width, layers, vocabulary in (
        ("60 M parameters", 512, 14, 8192),
        ("300 M parameters", 1024, 20, 16384),
    ):
        with tempfile.TemporaryDirectory() as root:
            with Store(Path(root) / "run", checksums=False) as store:
                store.save(0, model=model(width, layers, vocabulary))
            step = Path(root) / "run" / "0"
            compare(case, step, Path(root))
            compare_memory(case, step)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure_memory(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
