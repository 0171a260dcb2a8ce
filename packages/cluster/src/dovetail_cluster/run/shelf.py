# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The shelf of a host: a folder in memory, owned by its daemon. It outlives the host's ranks.

Ranks keep checkpoints there; see `dovetail_cluster.tier`. A daemon holds a lock on its folder as
long as it lives. A folder without a lock belongs to a dead daemon: any daemon deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDER = "DOVETAIL_CLUSTER_SHELF"
_MEMORY = Path("/dev/shm")  # Linux's file system in memory
_NAME = "dovetail-shelf-"


def base(environment: Mapping[str, str]) -> Path:
    """Returns the parent folder of the shelves.

    Args:
        environment: Variables. `DOVETAIL_CLUSTER_SHELF` names a folder, such as on a local disk.

    Returns:
        The folder. Default: /dev/shm, or the folder for temporary files if it cannot be written.
    """
    if named := environment.get(FOLDER):
        return Path(named)
    return _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def sweep(parent: Path) -> None:
    """Deletes the shelves of dead daemons.

    Args:
        parent: The parent folder of the shelves.
    """
    for path in parent.glob(f"{_NAME}*"):
        with contextlib.suppress(OSError):  # deleted by another daemon, or another user's
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
            finally:
                os.close(descriptor)


def remove(path: str | Path) -> None:
    """Deletes a folder. Another process may do the same."""
    shutil.rmtree(path, ignore_errors=True)


class Shelf:
    """The shelf of one daemon. Deletes those of dead daemons.

    Args:
        parent: The parent folder of the shelves.

    Attributes:
        path: The shelf.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        sweep(parent)
        # Locked before it has the name that others sweep.
        new = Path(tempfile.mkdtemp(prefix=f".{_NAME}", dir=parent))
        self._lock = os.open(new, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = parent / new.name.removeprefix(".")
        new.rename(self.path)

    def begin(self, run: int) -> Path:
        """Deletes the checkpoints of other runs, and returns the folder of this one."""
        for path in self.path.iterdir():
            if path.name != str(run):
                remove(path)
        path = self.path / str(run)
        path.mkdir(exist_ok=True)
        return path

    def close(self) -> None:
        """Deletes the shelf, and those of daemons that died meanwhile."""
        remove(self.path)
        os.close(self._lock)
        sweep(self._parent)
