# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Atomic, durable writes of files and directories.

Both are written beside their place under another name, synced, and renamed; a rename is atomic on a
POSIX file system. A killed writer leaves a hidden file or directory `.NAME.*.partial`. No reader
opens it.

Kept verbatim in several packages: edit scripts/shared, then run scripts/copies.py.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Errors of a rename onto a directory or a file that has come to be there, or a mount point.
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY)


def sync(*paths: Path) -> None:
    """Flushes files and directories to the disk, and returns afterwards."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_file(path: Path, content: bytes | str) -> None:
    """Writes a file or replaces it. Text is encoded as UTF-8.

    Raises OSError, for example on a full disk. The old file then stays as it was.
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
    """Yields a directory to fill. It becomes `path` at the end, or is deleted after an error.

    Its content is synced before the rename, its name after it. Missing parents are created and
    synced too. `path` may be an empty directory, but no mount point.

    Raises FileExistsError if anything else is at `path`, at the start or at the end.
    """
    empty = path.is_dir() and not any(path.iterdir())
    if path.is_symlink() or (path.exists() and not empty):
        raise FileExistsError(
            f"the destination must be new, got {str(path)!r}, which is in use; give another one, "
            "or remove it"
        )
    created = [parent for parent in path.parents if not parent.exists()]
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
            if error.errno not in _TAKEN:
                raise
            reason = "another process wrote meanwhile; give another one"
            if error.errno == errno.EBUSY:
                reason = f"is a mount point; give a directory in it, such as {str(path / '1')!r}"
            raise FileExistsError(
                f"the destination must be new, got {str(path)!r}, which {reason}"
            ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    # The name of each created directory is data of its own parent.
    sync(path.parent, *(parent.parent for parent in created))


def _partial(path: Path) -> Path:
    """Returns a new name beside `path`; a rename works only within one file system."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
