# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fills the disk at random points of saving: an error of the next call, and nothing is lost.

`full_disk.py ROOT FILLS DISK` prints how the saves ended. DISK is what is full:

    space   a file system of its own, in memory, in a mount namespace of this program
    file    no file may grow beyond a limit (RLIMIT_FSIZE), which needs no permission
    checksums    the same, with a limit that the checksums alone exceed

Prints "no permission to mount" if the first is asked for and not allowed.
"""

import logging
import os
import random
import resource
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Store
from dovetail_checkpoint.proof import checksums

MOUNTED = "FULL_DISK_MOUNTED"
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
VALUES = np.random.default_rng(0).normal(size=(200, 1001)).astype(np.float32)


def limit_space(root: Path, free: int | None) -> None:
    # Not by looking at each file: threads of a save that has failed may still write and delete.
    used = shutil.disk_usage(root).used if os.path.ismount(root) else 0
    size = "1g" if free is None else used + free
    option = "remount," if os.path.ismount(root) else ""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{option}size={size}", "x", root], check=True)


def limit_files(root: Path, free: int | None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if free is None else free, hard))
    sys.dont_write_bytecode = free is not None  # it would be cut, too


def items(step: int, disk: str) -> dict:
    if disk != "checksums":
        return {"item": {"w": jnp.asarray(VALUES * step)}}
    return {f"item{i}": {"w": jnp.asarray(VALUES[i] * step)} for i in range(12)}


def some_limit(sizes: dict[str, int], disk: str, moments: random.Random) -> int:
    """As if the disk were full somewhere in the save of a step of files of these sizes."""
    others = [size for name, size in sizes.items() if name != checksums.SHA256SUMS]
    if disk == "checksums":
        return moments.randrange(max(others), sizes[checksums.SHA256SUMS])
    whole = sum(others) if disk == "space" else max(others)
    # Most small files are written last: half of the limits lie near the end.
    return int(whole * moments.choice([moments.random(), moments.uniform(0.9, 1.1)]))


def try_to_save(store: Store, root: Path, step: int, disk: str) -> str:
    """How the save of `step` ended."""
    try:
        store.save(step, **items(step, disk))
        store.wait()
    except RuntimeError as error:
        said = str(error)
    else:
        assert checksums.check(root / str(step)) == []
        return "there was room"
    assert f"step {step} must be written to" in said
    assert "free space or fix the directory, then save again" in said
    return "committed, no checksums" if (root / str(step)).exists() else "not committed"


def check(store: Store, step: int, disk: str) -> None:
    wanted = items(step, disk)
    found, restored = store.restore(**wanted)
    assert found == step
    assert len(store.report.steps) == 1, store.report
    for name, item in wanted.items():
        assert np.array_equal(restored[name]["w"], item["w"])


def main(root: Path, fills: int, disk: str) -> None:
    logging.disable(logging.CRITICAL)  # Orbax logs the failure of each of its threads
    limit = limit_space if disk == "space" else limit_files
    limit(root, None)
    store, moments, ended = Store(root), random.Random(7), Counter()
    assert try_to_save(store, root, 1, disk) == "there was room"
    files = [path for path in (root / "1").rglob("*") if path.is_file()]
    sizes = {path.name: path.stat().st_size for path in files}
    step = 1
    for _ in range(fills):
        limit(root, some_limit(sizes, disk, moments))
        end = try_to_save(store, root, step + 1, disk)
        limit(root, None)
        ended[end] += 1
        check(store, step if end == "not committed" else step + 1, disk)
        step += 2
        assert try_to_save(store, root, step, disk) == "there was room"
    print(*(f"{name}: {count}" for name, count in sorted(ended.items())), sep="\n")


def mounting(arguments: list[str]) -> None:
    """Runs this program again where it may mount, if it may."""
    if subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode:
        print("no permission to mount")
        return
    os.execvpe(
        OWN_MOUNTS[0], [*OWN_MOUNTS, sys.executable, *arguments], {**os.environ, MOUNTED: "1"}
    )


if sys.argv[3] == "space" and MOUNTED not in os.environ:
    mounting(sys.argv)
else:
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
