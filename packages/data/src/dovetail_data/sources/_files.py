# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a source: found once, in one order, with one digest."""

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    name: str
    path: str
    bytes: int


def find(paths: Paths, pattern: str) -> tuple[File, ...]:
    """The files that `paths` names, directories searched with `pattern`, sorted by name.

    Names are relative to the deepest directory that holds all of them: the same input in another
    place has the same names.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [Path(os.path.abspath(file)) for path in given for file in _expand(Path(path), pattern)]
    if not found:
        raise ValueError(
            f"a source must have at least one file: got none from paths={[str(p) for p in given]} "
            f"with pattern={pattern!r}. Give other paths, or a pattern that matches, such as "
            '"**/*.md".'
        )
    root = Path(os.path.commonpath([file.parent for file in found]))
    files = [
        File(name=file.relative_to(root).as_posix(), path=str(file), bytes=file.stat().st_size)
        for file in found
    ]
    return tuple(sorted(files, key=lambda file: file.name))


def _expand(path: Path, pattern: str) -> list[Path]:
    if path.is_dir():
        return [file for file in path.glob(pattern) if file.is_file()]
    if not path.is_file():
        raise ValueError(f"a source must exist: got path={str(path)!r}. Correct its spelling.")
    return [path]


def digest(files: Iterable[File], *, kind: str) -> str:
    """sha256 of how the files are read (`kind`) and of their names and contents.

    Contents, not modification times: a checkout or a copy is the same source. It reads the whole
    input once, which is fast beside encoding it.
    """
    total = hashlib.sha256(kind.encode())
    for file in files:
        with open(file.path, "rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"\n{file.name}\n{content}".encode())
    return total.hexdigest()
