# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The lock of a run: one process at a time."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

FILE = ".lock"
# A look at the lock, as `is_locked` takes it, holds it for less than this.
_TRIES, _WAIT_S = 5, 0.05
held: set[Path] = set()  # runs that this process holds: POSIX locks are a process's


def is_locked(run: Path) -> bool:
    """Tests whether another process of this machine holds the run."""
    import fcntl

    if run.resolve() in held:  # to open and close the file would release the lock
        return False
    try:
        with (run / FILE).open("rb") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # either is a name of that error
                return True
    except OSError:  # no such file, or a file system without locks
        return False
    return False


@contextlib.contextmanager
def locked(run: Path, *, settings_file: str) -> Iterator[None]:
    """Holds a POSIX lock, which ends with this process in any case. Children do not inherit it.

    A block without a run at its end, such as a refusal, leaves no lock and no new folders.

    Args:
        run: The folder of the run, which is made.
        settings_file: Name of the settings of a run.

    Raises:
        RuntimeError: Another launch holds the run, in this process or in another one. Or the file
            system has no locks.
    """
    was_run = (run / FILE).exists()
    new = [folder for folder in (run, *run.parents) if not folder.exists()]
    if run.resolve() in held:
        raise RuntimeError(
            f"a run must have one launch at a time, got {str(run)!r}, which this process has "
            "launched: end that launch first"
        )
    run.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for remaining in reversed(range(_TRIES)):
            if (file := _acquired(run / FILE)) is not None:
                stack.enter_context(file)
                break
            if not remaining:
                raise RuntimeError(
                    f"a run must have one process at a time, got {str(run)!r}, which another "
                    "has: wait for it, or stop it first"
                )
            time.sleep(_WAIT_S)
        held.add(run.resolve())
        try:
            yield
        finally:
            held.discard(run.resolve())
            if not was_run and not (run / settings_file).is_file():
                (run / FILE).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # another process may have put a file there
                    for folder in new:
                        folder.rmdir()


def _acquired(path: Path) -> IO[bytes] | None:
    """Returns the locked file, or None if another process holds it or has removed it."""
    import fcntl

    file = path.open("wb")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
            return file
    except (BlockingIOError, PermissionError, FileNotFoundError):
        pass  # held, by either name of that error, or removed: the caller tries again
    except OSError as error:
        file.close()
        raise RuntimeError(
            f"a run must lie on a file system with locks, got {str(path.parent)!r} ({error}): name "
            "a folder of another one"
        ) from error
    file.close()
    return None
