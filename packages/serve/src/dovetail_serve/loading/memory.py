# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`WeightMemory`: a bound on the weights that all models of a process hold in host memory.

Weights are read into memory, because a file that is cut short under a map ends the process with
SIGBUS, and with it all other models. Above the bound a load is refused: a process that the system
ends for want of memory would serve nobody either.
"""

import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail_serve.errors import MemoryExceeded

# Of this machine's memory, for weights. The rest is for bodies (1 GiB by default), activations,
# programs and the interpreter. A version larger than half of it cannot replace one of its size
# without a stop.
SHARE = 0.75
# Where a container finds its limit; in version 1 of control groups, one without is a huge number.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_log = logging.getLogger("dovetail_serve")


class WeightMemory:
    """Bytes of weights in host memory.

    Args:
        limit_bytes: Largest sum. Default: `SHARE` of this machine's memory, or of its container's.

    Attributes:
        limit_bytes: The same.
        total_bytes: Memory of the machine or container.
        held_bytes: Bytes now, those of loads in progress included.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.total_bytes = machine_bytes()
        self.limit_bytes = int(SHARE * self.total_bytes) if limit_bytes is None else limit_bytes
        self.held_bytes = 0
        # Reentrant: the end of an array may come at any allocation.
        self._lock = threading.RLock()

    def reserve(self, size: int) -> None:
        """Counts `size` bytes more. Raises MemoryExceeded if they are too many."""
        with self._lock:
            if self.held_bytes + size > self.limit_bytes:
                raise MemoryExceeded(
                    f"weights in memory must have at most {self.limit_bytes} bytes, {SHARE:.0%} of "
                    f"this machine's {self.total_bytes}, got {size} and {self.held_bytes} of other "
                    "models; if nobody writes into the files of a bundle, map them with "
                    "map_weights=True (serve --map-weights), or unload other models"
                )
            self.held_bytes += size

    def release(self, size: int) -> None:
        """Counts `size` bytes less."""
        with self._lock:
            self.held_bytes -= size

    def release_with(self, arrays: Iterable[tuple[Any, int]]) -> None:
        """Counts the bytes of each array until its end. Models may share arrays."""
        for array, size in arrays:
            weakref.finalize(array, self.release, size).atexit = False


def log_memory(memory: WeightMemory | None) -> None:
    """Logs where a server has its weights. `memory` is None if it maps them."""
    if memory is None:
        _log.warning(
            "weights are maps of their files: a program that cuts one short ends this server, and "
            "one that writes into it changes its answers; mount the repository read-only"
        )
    else:
        _log.info(
            "weights are read into memory limit_bytes=%d machine_bytes=%d",
            *(memory.limit_bytes, memory.total_bytes),
        )


def machine_bytes() -> int:
    """Returns the memory of this machine, or the limit of its container if that is less.

    It is `sys.maxsize` on systems that do not tell, such as Windows.
    """
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdecimal():  # or "max"
            sizes.append(int(text))
    return min(sizes)
