# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a source: found once, in one order, with one digest."""

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
    name: str
    path: str
    bytes: int


def find(paths: Paths, pattern: str, *, compressed: bool = False) -> tuple[File, ...]:
    """The files that `paths` names, directories searched with `pattern`, sorted by name.

    Names are relative to the deepest directory that holds all of them: the same input in another
    place has the same names. compressed: a directory's files may also have one of the endings
    .gz, .bz2, .xz and .zst after what the pattern matches. A file that comes twice, or both plain
    and compressed, is a ValueError: its records would count twice.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    patterns = [pattern, *(pattern + ending for ending in compression.SUFFIXES if compressed)]
    found = [os.path.abspath(file) for path in given for file in _expand(Path(path), patterns)]
    if not found:
        raise ValueError(
            f"a source must have at least one file: got none from paths={[str(p) for p in given]} "
            f"with pattern={pattern!r}. Give other paths, or a pattern that matches, such as "
            '"**/*.md".'
        )
    _check_once(found, compressed=compressed)
    if compressed:
        compression.require(found)
    return tuple(sorted(named(found), key=lambda file: file.name))


def named(paths: Sequence[str | os.PathLike[str]]) -> list[File]:
    """The files of `paths`, in that order."""
    found = [Path(os.path.abspath(path)) for path in paths]
    root = Path(os.path.commonpath([file.parent for file in found]))
    return [
        File(name=file.relative_to(root).as_posix(), path=str(file), bytes=file.stat().st_size)
        for file in found
    ]


def _expand(path: Path, patterns: list[str]) -> set[Path]:
    if path.is_dir():
        matches = (file for pattern in patterns for file in path.glob(pattern))
        return {file for file in matches if file.is_file()}
    if not path.is_file():
        raise ValueError(f"a source must exist: got path={str(path)!r}. Correct its spelling.")
    return {path}


def _check_once(found: list[str], *, compressed: bool) -> None:
    plain = [path.removesuffix(compression.suffix(path)) if compressed else path for path in found]
    twice = [path for path, count in collections.Counter(plain).items() if count > 1]
    if twice:
        forms = [path for path, name in zip(found, plain, strict=True) if name == twice[0]]
        raise ValueError(
            f"a source must have each file once: got {forms}. Delete one of them, or give a "
            "pattern or paths that take only one."
        )


def check_unchanged(path: str, expected_bytes: int) -> None:
    """ValueError unless the file at `path` has the size that it had when it was found."""
    now = os.stat(path).st_size
    if now != expected_bytes:
        raise ValueError(
            f"a source must not change while it is read: got {path} with {now} bytes, it had "
            f"{expected_bytes}. Make the source again."
        )


def digest(files: Iterable[File], *, kind: str) -> str:
    """sha256 of how the files are read (`kind`) and of their names and contents.

    Contents, not modification times: a checkout or a copy is the same source. It reads the whole
    input once, which is fast beside encoding it.
    """
    total = hashlib.sha256(kind.encode())
    for file in files:
        with open(file.path, "rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"\n{file.name}\n{content}".encode(errors="surrogateescape"))
    return total.hexdigest()
