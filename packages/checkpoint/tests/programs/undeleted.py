# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Saves while old steps cannot be deleted. `undeleted.py ROOT TRIALS SEED`.

Each trial lets the deletion of one step fail in one way, as busy files on NFS, a directory without
permission or a step that is a link do, and saves on. No save may raise, each failure must be
counted, and once deletion works again the next save deletes what was left. The last lines count the
ways, and the trials that went wrong.
"""

import errno
import logging
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Retention, Store
from dovetail_checkpoint.run import retention

LATEST = 2


@contextmanager
def replaced(owner: object, name: str, make: Callable) -> Iterator[None]:
    """Puts `make(old)` in the place of `owner.name`."""
    old = getattr(owner, name)
    setattr(owner, name, make(old))
    try:
        yield
    finally:
        setattr(owner, name, old)


def failing_rename(code: int) -> Callable:
    def make(rename: Callable) -> Callable:
        def call(path: Path, target: Path) -> Path:
            if str(target).endswith(".dovetail-deleting"):
                raise OSError(code, os.strerror(code), str(path))
            return rename(path, target)

        return call

    return make


def failing_rmtree(code: int, moments: random.Random) -> Callable:
    """Some files go, then one stays, as a file that is open on NFS."""

    def make(rmtree: Callable) -> Callable:
        def call(path: Path, **options: object) -> None:
            if not str(path).endswith(".dovetail-deleting"):
                return rmtree(path, **options)
            files = [file for file in Path(path).rglob("*") if file.is_file()]
            for file in moments.sample(files, moments.randint(0, len(files))):
                file.unlink()
            raise OSError(code, os.strerror(code), str(path))

        return call

    return make


def faults(moments: random.Random) -> dict[str, Callable]:
    """Contexts in which deletion fails, by name."""

    def rename(code: int) -> Callable:
        return lambda: replaced(Path, "rename", failing_rename(code))

    def rmtree(code: int) -> Callable:
        return lambda: replaced(shutil, "rmtree", failing_rmtree(code, moments))

    def unlisted() -> object:
        def make(_: Callable) -> Callable:
            def call(*_: object) -> None:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

            return call

        return replaced(retention, "_remove_leftovers", make)

    return {
        "a busy directory": rename(errno.EBUSY),
        "no permission for the directory": rename(errno.EACCES),
        "a busy file": rmtree(errno.EBUSY),
        "no permission for a file": rmtree(errno.EACCES),
        "a directory that fills again": rmtree(errno.ENOTEMPTY),
        "a stale root": unlisted,
    }


def save(store: Store, step: int) -> None:
    store.save(step, item=jnp.full((5, 3), float(step)))
    store.wait()


def main(root: Path, trials: int, seed: int) -> None:
    logging.disable(logging.CRITICAL)
    moments, counts = random.Random(seed), Counter()
    ways = faults(moments)
    with Store(root, retention=Retention(latest=LATEST)) as store:
        for step in range(1, LATEST + 1):
            save(store, step)
        for trial in range(trials):
            name = [*ways, "a link"][trial % (len(ways) + 1)]
            before, step = store.failed_deletions, LATEST + 1 + 2 * trial
            counts[name] += 1
            if name == "a link":
                store_of_link = linked(root, step - LATEST)
                save(store, step)
                failed = 0
                counts["wrong"] += not any(store_of_link.iterdir())
            else:
                with ways[name]():
                    save(store, step)
                failed = 1
            save(store, step + 1)
            found, items = store.restore(item=jnp.zeros((5, 3)))
            left = sorted(path.name for path in root.iterdir() if path.is_dir())
            sound = (
                found == step + 1
                and len(store.report.steps) == 1
                and np.all(np.asarray(items["item"]) == step + 1)
                and store.failed_deletions == before + failed
                and set(left) == {".dovetail-writer", str(step), str(step + 1)}
            )
            counts["wrong"] += not sound
    for name in (*ways, "a link", "wrong"):
        print(f"{name}: {counts[name]}")


def linked(root: Path, step: int) -> Path:
    """Moves a step out of the root and puts a link in its place. Returns its new path."""
    aside = root.with_name(f"{root.name}-linked-{step}")
    (root / str(step)).rename(aside)
    (root / str(step)).symlink_to(aside)
    return aside


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
