# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SHA-256 digests of files and arrays, on all cores."""

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

# Read at a time. It stays in a core's cache until it is hashed.
_CHUNK_BYTES = 256 << 10
Item = TypeVar("Item")
Result = TypeVar("Result")


def digest(data: bytes | memoryview) -> str:
    """Returns the SHA-256 digest of `data` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def array_digest(array: np.ndarray) -> str:
    """Returns the digest of the values in C order, little-endian: as a file has them."""
    return digest(raw(array))


def raw(array: np.ndarray) -> memoryview:
    """Returns the bytes of an array in C order, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def file_digest(path: Path) -> str:
    """Returns the digest of a file. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def range_digest(path: Path, start: int, stop: int) -> str:
    """Returns the digest of a part of a file.

    It is read and not mapped: a map of a file that is cut short meanwhile ends the process.

    Args:
        path: The file.
        start: First byte.
        stop: End of the part, exclusive. It may be beyond the end of the file.

    Raises:
        OSError: The file cannot be read.
    """
    sha256, buffer = hashlib.sha256(), memoryview(bytearray(min(_CHUNK_BYTES, stop - start)))
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while start < stop and (size := file.readinto(buffer[: stop - start])):
            sha256.update(buffer[:size])
            start += size
    return sha256.hexdigest()


def on_all_cores(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Returns `work` of each item, in order. hashlib releases the interpreter's lock."""
    with ThreadPoolExecutor(_cores()) as pool:
        return list(pool.map(work, items))


def _cores() -> int:
    """Returns the number of cores this process may use; a container often has fewer."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
