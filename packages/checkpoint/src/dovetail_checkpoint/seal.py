# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The seal of a committed step: `SHA256SUMS`, which `sha256sum -c SHA256SUMS` also reads.

Leaf digests prove the arrays; the seal proves the files, names the bad one, and tells a step that
was finished from one whose writer was killed right after the commit.
"""

import hashlib
import os
from pathlib import Path

from dovetail_checkpoint.report import Problem

SEAL = "SHA256SUMS"
_CHUNK_BYTES = 1 << 20


def write(directory: Path) -> None:
    """Hashes every file under `directory`; the seal appears whole or not at all."""
    lines = [f"{_sha256(directory / name)}  {name}\n" for name in _files(directory)]
    partial = directory / f"{SEAL}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(directory / SEAL)
    sync_directory(directory)


def exists(directory: Path) -> bool:
    """Whether the step was sealed."""
    return (directory / SEAL).is_file()


def check(directory: Path, *, part: int = 0, parts: int = 1) -> list[Problem]:
    """What differs from the seal; nothing if there is no seal.

    Looks at every `parts`-th line from `part` on, so that processes may share the work.
    """
    if not exists(directory):
        return []
    try:
        entries = _entries((directory / SEAL).read_text(encoding="utf-8"))
    except ValueError:
        return [Problem(where=SEAL, reason="is not a list of SHA-256 sums and file names")]
    unlisted = set(_files(directory)) - {name for _, name in entries}
    problems = [Problem(where=name, reason="is not in the seal") for name in sorted(unlisted)]
    compared = (_compare(directory, name, want) for want, name in entries[part::parts])
    return problems + [problem for problem in compared if problem is not None]


def sync_directory(directory: Path) -> None:
    """Makes renames in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(text: str) -> list[tuple[str, str]]:
    entries = []
    for line in text.splitlines():
        want, name = line[:64], line[66:]
        if line[64:66] != "  " or not name or set(want) - set("0123456789abcdef"):
            raise ValueError(line)
        entries.append((want, name))
    if not entries or not text.endswith("\n"):
        raise ValueError("truncated")
    return entries


def _compare(directory: Path, name: str, want: str) -> Problem | None:
    try:
        have = _sha256(directory / name)
    except OSError as error:
        return Problem(where=name, reason=f"cannot be read ({error.strerror})")
    if have == want:
        return None
    return Problem(where=name, reason=f"sha256 is {have[:12]}..., the seal says {want[:12]}...")


def _files(directory: Path) -> list[str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    names = (path.relative_to(directory).as_posix() for path in files)
    return sorted(name for name in names if name not in (SEAL, f"{SEAL}.partial"))


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
