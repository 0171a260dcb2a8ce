# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The files on the shelf of one host: own ones and copies of the neighbour's, below a limit."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import NamedTuple

from dovetail_cluster.tier.files import Name, parse

_NEW = ".new"  # of a file that is not whole yet
_KEPT = 2  # complete steps, if the limit has room for them


class Key(NamedTuple):
    """Generation and step of a file. A later generation is newer, at any step."""

    generation: int
    step: int


class FullError(OSError):
    """The shelf has no room for a file below its limit."""


class Folder:
    """Files on the shelf of this host. Removes the half-written files of a killed rank.

    Args:
        path: The folder. It is made.
        limit_bytes: Bytes of all files together.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path, self._limit_bytes = path, limit_bytes
        self._lock = threading.Lock()
        self._complete: Key | None = None
        self._reserved: dict[Name, int] = {}
        path.mkdir(parents=True, exist_ok=True)
        for left in path.glob(f"*{_NEW}"):
            left.unlink()

    @property
    def complete(self) -> Key | None:
        """The newest complete step: all ranks have written and copied it. It is never dropped."""
        return self._complete

    @complete.setter
    def complete(self, key: Key | None) -> None:
        with self._lock:
            if key is not None and (self._complete is None or key > self._complete):
                self._complete = key

    def names(self) -> list[Name]:
        """Names of the whole files."""
        names = [parse(path.name) for path in self.path.iterdir()]
        return sorted(name for name in names if name is not None)

    def file(self, name: Name) -> Path:
        """The path of a whole file."""
        return self.path / str(name)

    def new(self, name: Name, size_bytes: int) -> Path:
        """Makes room for a file, by dropping steps older than `complete`. The oldest go first.

        Returns:
            The path to write to. End with `put` or `drop`.

        Raises:
            FullError: There is no room.
        """
        with self._lock:
            sizes = {other: self.file(other).stat().st_size for other in self.names()}
            used = sum(sizes.values()) + sum(self._reserved.values())
            old = sorted({key_of(other) for other in sizes if self._is_old(other, name)})
            while old and (used + size_bytes > self._limit_bytes or len(old) >= _KEPT):
                key = old.pop(0)
                for other in [other for other in sizes if key_of(other) == key]:
                    self.file(other).unlink()
                    used -= sizes.pop(other)
            if used + size_bytes > self._limit_bytes:
                raise FullError(
                    f"a shelf must stay below limit_bytes={self._limit_bytes}, got {used} bytes in "
                    f"use and {size_bytes} more; write limit_bytes={2 * (used + size_bytes)}"
                )
            self._reserved[name] = size_bytes
        return self.unfinished(name)

    def unfinished(self, name: Name) -> Path:
        """The path of a half-written file."""
        return self.path / f"{name}{_NEW}"

    def _is_old(self, other: Name, name: Name) -> bool:
        key = key_of(other)
        return key < self._complete if self._complete else key.generation < name.generation

    def put(self, name: Name) -> None:
        """Gives a file its name, as it is whole."""
        with self._lock:
            self.unfinished(name).rename(self.file(name))
            self._reserved.pop(name, None)

    def drop(self, name: Name) -> None:
        """Gives a file up."""
        with self._lock, contextlib.suppress(FileNotFoundError):  # nothing was written yet
            self._reserved.pop(name, None)
            self.unfinished(name).unlink()


def key_of(name: Name) -> Key:
    """Generation and step of a file."""
    return Key(name.generation, name.step)
