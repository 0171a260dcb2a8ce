# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Finds processes that outlive the block of code that has started them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import uuid
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def marked_processes() -> Iterator[Callable[[], list[int]]]:
    """Marks processes that start inside by a variable, which their children inherit.

    Yields:
        A function that returns the process ids of those alive. On Linux; elsewhere it finds none.
    """
    mark = f"DOVETAIL_CLUSTER_MARK_{uuid.uuid4().hex}"

    def left() -> list[int]:
        proc = pathlib.Path("/proc")  # on Linux; elsewhere nothing is found
        pids = [int(path.name) for path in proc.glob("[0-9]*")]
        return [pid for pid in pids if pid != os.getpid() and is_marked(proc / str(pid))]

    def is_marked(folder: pathlib.Path) -> bool:
        try:
            return mark.encode() in (folder / "environ").read_bytes()
        except OSError:  # it has ended, or is another user's
            return False

    os.environ[mark] = "1"
    try:
        yield left
    finally:
        del os.environ[mark]
