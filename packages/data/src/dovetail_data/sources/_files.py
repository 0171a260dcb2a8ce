# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a source: listed once, in one order, with one digest."""

import abc
import collections
import dataclasses
import functools
import hashlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dovetail_data._arguments import is_remote, require_name, require_path, wrong
from dovetail_data.sources import _fetched, _shards, compression
from dovetail_data.sources.source import Corrupt, Part, Record

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

CHECKED_RECORDS = 1024  # between two checks of a file
PART_BYTES = 1 << 22  # of a divided file: large beside a record, small beside a worker's memory
_SETTLED_NS = 2_000_000_000  # above the resolution of times on any usual file system


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

    def part(self, start: int, stop: int, *, size: int) -> Part:
        """Returns a part of the file.

        Args:
            start: First byte or record.
            stop: End of the part, likewise.
            size: Bytes of the part.
        """
        name = f"{self.name}[{start}:{stop}]"
        return Part(name=name, path=self.path, start=start, stop=stop, bytes=size)

    def whole(self) -> Part:
        """Returns the file as one part."""
        return Part(name=self.name, path=self.path, start=0, stop=self.bytes, bytes=self.bytes)


@dataclasses.dataclass(frozen=True)
class Content:
    """The content of a file when it was hashed.

    Args:
        sha256: Its digest.
        settled: The file's state, if its next change must change that too. None for a file that
            had just been written: file systems round times.
    """

    sha256: str
    settled: "State | None"


class Listed(abc.ABC):
    """A source with a list of files. It reads the contents of its fingerprint, or raises.

    Contents, not modification times, make the fingerprint: a checkout or a copy is the same source.
    It reads the whole input once, and that is fast beside encoding it. From then on, each file is
    checked before and after records are read from it: it is hashed again if its times changed.
    """

    files: tuple[File, ...]

    def __repr__(self) -> str:
        size = sum(file.bytes for file in self.files)
        return f"{type(self).__name__}(files={len(self.files):,}, bytes={size:,})"

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """The way of reading, for the fingerprint."""

    @abc.abstractmethod
    def read_unchecked(self, part: Part) -> Iterator[Record | Corrupt]:
        """Yields the records of one part."""

    @property
    def fingerprint(self) -> str:
        return self.digest()

    def digest(self, *, without: Collection[str] = ()) -> str:
        """Returns the sha256 of `kind` and of the files' names and contents.

        `without` names files to leave out.
        """
        total = hashlib.sha256(self.kind.encode())
        for file in self.files:
            if file.name not in without:
                line = f"\n{file.name}\n{self.contents[file.path].sha256}"
                total.update(line.encode(errors="surrogateescape"))
        return total.hexdigest()

    @functools.cached_property
    def contents(self) -> dict[str, Content]:
        """The content of each file by its path, hashed at the first use."""
        return {file.path: _hashed(file.path) for file in self.files}

    def read(self, part: Part) -> Iterator[Record | Corrupt]:
        """Yields the records of one part, with `Corrupt` in the place of damaged ones.

        Raises ValueError if the file has changed, at the latest `CHECKED_RECORDS` records later.
        """
        self._check(part.path)
        for i, record in enumerate(self.read_unchecked(part), start=1):
            yield record
            if i % CHECKED_RECORDS == 0:
                self._check(part.path)
        self._check(part.path)

    @functools.cached_property
    def by_path(self) -> dict[str, File]:
        """The files by their paths."""
        return {file.path: file for file in self.files}

    def _check(self, path: str) -> None:
        """Raises ValueError unless a file is as it was listed and hashed."""
        state = check_unchanged(path, self.by_path[path].bytes)
        if "contents" not in self.__dict__:  # nobody asked for a digest
            return
        known = self.contents[path]
        if known.settled == state:
            return
        now = _hashed(path)
        if now.sha256 != known.sha256:
            raise ValueError(
                f"a source must not change while it is read: got {path} with other contents than "
                "those of its fingerprint. Make the source again."
            )
        self.contents[path] = now


def find(paths: Paths, pattern: str, *, compressed: bool = False) -> tuple[File, ...]:
    """Returns the files of `paths`, with directories searched, sorted by name.

    Names are relative to the deepest directory with all of them: the same input in another place
    has the same names.

    Args:
        paths: A file, a directory or a sequence of those, or of their URLs.
        pattern: Glob for directories.
        compressed: Find also the matches of `pattern` with .gz, .bz2, .xz or .zst appended.

    Raises:
        ValueError: There is no file, a path does not exist, or a file comes twice, or both plain
            and compressed: its records would count twice.
    """
    require_name("pattern", pattern, "**/*.md")
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise wrong("paths", "a path or a sequence of paths", paths, 'Pass "file" or ["a", "b"].')
    listed = list(given)
    urls = [str(path) for path in listed if is_remote(path)]
    patterns = [pattern, *(pattern + ending for ending in compression.SUFFIXES if compressed)]
    if urls and len(urls) < len(listed):
        raise ValueError(
            f"the files of a source must be all local or all at URLs: got {urls[0]!r} among "
            f"paths={list(map(str, listed))}. Give them to two sources."
        )
    remote = _fetched.find(urls, patterns) if urls else []
    given = [require_path("paths", path) for path in listed if not is_remote(path)]
    files = [os.path.abspath(file) for path in given for file in _expand(Path(path), patterns)]
    for path in given:
        if Path(path).is_dir():
            _shards.check_directory(_expand(Path(path), patterns), where=str(path))
    shards = [Path(os.path.abspath(path)) for path in given if "-of-" in Path(path).name]
    if shards:
        _shards.tell_missing(path for path in shards if path.is_file())
    files += [url for url, *_ in remote]
    if not files:
        raise ValueError(
            f"a source must have at least one file: got none from paths={[str(p) for p in listed]} "
            f"with pattern={pattern!r}. Give other paths, or a pattern that matches, such as "
            '"**/*.md".'
        )
    _check_once(files, compressed=compressed)
    if compressed:
        compression.require(files)
    entries = _copies(remote) if remote else named(files)
    return tuple(sorted(entries, key=lambda file: file.name))


def _copies(remote: Sequence[_fetched.Remote]) -> list[File]:
    return [
        File(name=name, path=str(path), bytes=path.stat().st_size)
        for name, path in _fetched.fetch(remote)
    ]


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


State = tuple[int, ...]
"""Inode and size of a file, and the times of its last change: of its content, and of anything."""


def check_unchanged(path: str, expected_bytes: int) -> State:
    """Returns the state of a file; ValueError unless it still has its expected size."""
    state = _state(path)
    size = state and state[1]
    if state is None or size != expected_bytes:
        raise ValueError(
            f"a source must not change while it is read: got {path} with bytes={size}, it had "
            f"{expected_bytes}. Make the source again."
        )
    return state


def _hashed(path: str) -> Content:
    """Returns the content of a file; ValueError if it changes meanwhile."""
    begin, before = time.time_ns(), _state(path)
    with open(path, "rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if before is None or _state(path) != before:
        raise ValueError(
            f"a source must not change while it is read: got {path}, which another process writes. "
            "Wait for it, and make the source again."
        )
    age = abs(begin - max(before[-2:]))  # the clock of a file server may be ahead
    return Content(sha256, before if age > _SETTLED_NS else None)


def _state(path: str) -> State | None:
    """Returns the state of a file, None if it is gone."""
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return None
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
