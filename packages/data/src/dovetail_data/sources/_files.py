# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a source: listed once, in one order, with one digest."""

import collections
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from dovetail_data import compression

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """A file of a source.

    Args:
        name: Its path relative to the deepest directory with all files of the source.
        path: Its absolute path.
        bytes: Its size.
    """

    name: str
    path: str
    bytes: int


class Listed:
    """A source with a list of files; its repr counts them."""

    files: tuple[File, ...]

    def __repr__(self) -> str:
        size = sum(file.bytes for file in self.files)
        return f"{type(self).__name__}(files={len(self.files):,}, bytes={size:,})"


def find(paths: Paths, pattern: str, *, compressed: bool = False) -> tuple[File, ...]:
    """Returns the files of `paths`, with directories searched, sorted by name.

    Names are relative to the deepest directory with all of them: the same input in another place
    has the same names.

    Args:
        paths: A file, a directory or a sequence of those.
        pattern: Glob for directories.
        compressed: Find also the matches of `pattern` with .gz, .bz2, .xz or .zst appended.

    Raises:
        ValueError: There is no file, a path does not exist, or a file comes twice, or both plain
            and compressed: its records would count twice.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    patterns = [pattern, *(pattern + ending for ending in compression.SUFFIXES if compressed)]
    files = [os.path.abspath(file) for path in given for file in _expand(Path(path), patterns)]
    if not files:
        raise ValueError(
            f"a source must have at least one file: got none from paths={[str(p) for p in given]} "
            f"with pattern={pattern!r}. Give other paths, or a pattern that matches, such as "
            '"**/*.md".'
        )
    _check_once(files, compressed=compressed)
    if compressed:
        compression.require(files)
    return tuple(sorted(named(files), key=lambda file: file.name))


def named(paths: Sequence[str | os.PathLike[str]]) -> list[File]:
    """Returns the files of `paths`, in that order."""
    files = [Path(os.path.abspath(path)) for path in paths]
    root = Path(os.path.commonpath([file.parent for file in files]))
    return [
        File(name=file.relative_to(root).as_posix(), path=str(file), bytes=file.stat().st_size)
        for file in files
    ]


def _expand(path: Path, patterns: list[str]) -> set[Path]:
    if path.is_dir():
        matches = (file for pattern in patterns for file in path.glob(pattern))
        return {file for file in matches if file.is_file()}
    if not path.is_file():
        raise ValueError(f"a source must exist: got path={str(path)!r}. Correct its spelling.")
    return {path}


def _check_once(files: list[str], *, compressed: bool) -> None:
    plain = [path.removesuffix(compression.suffix(path)) if compressed else path for path in files]
    twice = [path for path, count in collections.Counter(plain).items() if count > 1]
    if twice:
        forms = [path for path, name in zip(files, plain, strict=True) if name == twice[0]]
        raise ValueError(
            f"a source must have each file once: got {forms}. Delete one of them, or give a "
            "pattern or paths that take only one."
        )


def check_unchanged(path: str, expected_bytes: int) -> None:
    """Raises ValueError unless the file still has its expected size."""
    now = os.stat(path).st_size
    if now != expected_bytes:
        raise ValueError(
            f"a source must not change while it is read: got {path} with {now} bytes, it had "
            f"{expected_bytes}. Make the source again."
        )


def digest(files: Iterable[File], *, kind: str) -> str:
    """Returns the sha256 of `kind`, the way of reading, and of the files' names and contents.

    Contents, not modification times: a checkout or a copy is the same source. It reads the whole
    input once, which is fast beside encoding it.
    """
    total = hashlib.sha256(kind.encode())
    for file in files:
        with open(file.path, "rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"\n{file.name}\n{content}".encode(errors="surrogateescape"))
    return total.hexdigest()
