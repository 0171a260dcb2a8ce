# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A directory that appears when all of it lies on disk, or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dovetail_checkpoint import checksums


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Gives a directory beside `path`, which is renamed to it at the end, or deleted on an error.

    What is written there must be synced. Raises ValueError if `path` exists or is being written.
    """
    partial = path.parent / f".{path.name}.partial"
    if path.exists() or path.is_symlink():
        raise ValueError(f"the destination must be new, got {path}, which exists; give another one")
    if partial.exists():
        raise ValueError(
            f"the destination must not be written by two, got {partial} of another conversion; "
            "if that one was killed, delete it"
        )
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(path)
        checksums.sync_directory(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
