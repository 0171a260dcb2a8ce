# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files and directories that are on the disk whole, or not there.

Both are written beside their place under another name, synced, and renamed, which is one operation
of a POSIX file system. What a kill leaves behind is a hidden file or directory `.NAME.*.partial`,
which nothing reads.

This file is kept verbatim in several packages, since no package imports another. Edit it in
scripts/shared, then run scripts/copies.py.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(*paths: Path) -> None:
    """Returns when the bytes of these files and the names in these directories are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_file(path: Path, content: bytes | str) -> None:
    """Writes a file, in the place of one that is there; text is written as UTF-8.

    Raises OSError, for a full disk among others; the old file is then as it was.
    """
    partial = _partial(path)
    try:
        with open(partial, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Gives a directory to fill, which becomes `path` at the end, or is deleted on an error.

    All that it holds is synced first. Missing parents are made. `path` may be an empty directory.

    Raises FileExistsError for anything else that is there, also if it came meanwhile.
    """
    empty = path.is_dir() and not any(path.iterdir())
    if path.is_symlink() or (path.exists() and not empty):
        raise FileExistsError(
            f"the destination must be new, got {str(path)!r}, which is in use; give another one, "
            "or remove it"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        for folder, _, names in os.walk(partial):
            sync(*(Path(folder, name) for name in names), Path(folder))
        try:
            partial.rename(path)
        except OSError as error:
            if not path.exists():
                raise
            raise FileExistsError(
                f"the destination must be new, got {str(path)!r}, which another process wrote "
                "meanwhile; give another one"
            ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(path.parent)


def _partial(path: Path) -> Path:
    """A new name beside `path`: a rename works within one file system alone."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
