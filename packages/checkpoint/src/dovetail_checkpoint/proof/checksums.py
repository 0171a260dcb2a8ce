# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The checksums of a committed step: `SHA256SUMS`, also readable by `sha256sum -c SHA256SUMS`.

    # checksum 77ac...                         the SHA-256 of all lines below
    3f0b...  _CHECKPOINT_METADATA            of each file
    9c1e...  model/d/5be0...
    # fmix32-pair 41d9a0c2f3b80e67 83886080  and of a large file the digest (digest.py) and the size

Leaf digests prove the arrays. Checksums prove the files and name the damaged one. They also
separate a finished step from a step whose writer was killed right after the commit. On one core
SHA-256 takes longer than Orbax takes to read an array, and the digest a fifth of that. A restore
therefore compares large files by the digest, and `verify` compares all files by SHA-256. Several
files are hashed at once: hashlib and XLA free the interpreter meanwhile.
`sha256sum` ignores lines with a leading `#`; the checksums of older steps have none.
"""

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from dovetail_checkpoint._durable import sync
from dovetail_checkpoint.proof.report import Problem
from dovetail_checkpoint.proof.sums import total, word_sums

SHA256SUMS = "SHA256SUMS"
_BLOCK_BYTES = 4 << 20
_THREADS = 8  # at most, each with one block: beyond that a disk or the memory is the limit
# Files from this size on have a digest too; SHA-256 takes half a millisecond for smaller ones.
_LARGE_BYTES = 1 << 20
_FILE = re.compile(r"([0-9a-f]{64})  (.+)")
_DIGEST = re.compile(r"# fmix32-pair ([0-9a-f]{16}) (0|[1-9][0-9]*)")

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One file. `digest` and `size` are None for a small one."""

    name: str
    sha256: str
    digest: str | None = None
    size: int | None = None


def write(directory: Path) -> None:
    """Hashes every file under `directory`. SHA256SUMS appears complete or not at all."""
    text = _render(_at_once(functools.partial(_entry, directory), _files(directory)))
    partial = directory / f"{SHA256SUMS}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(directory / SHA256SUMS)
    sync(directory)


def exists(directory: Path) -> bool:
    """Whether the step has its checksums."""
    return os.path.isfile(directory / SHA256SUMS)  # False too if the directory cannot be read


def check(directory: Path, *, quick: bool = False, part: int = 0, parts: int = 1) -> list[Problem]:
    """Compares the files of a step with its checksums.

    Args:
        directory: Directory of the step.
        quick: Compares large files by their digest instead of SHA-256, if SHA256SUMS has it.
        part: Share of this process, from 0: every `parts`-th file from `part` on.
        parts: Number of shares.

    Returns:
        One problem for each file that differs; none for a step without checksums.
    """
    if not exists(directory):
        return []
    try:
        entries = _parse((directory / SHA256SUMS).read_bytes().decode())
        unlisted = set(_files(directory)) - {entry.name for entry in entries}
    except ValueError as error:
        return [Problem(where=SHA256SUMS, reason=f"is not as it was written ({error})")]
    except OSError as error:
        return [Problem(where=SHA256SUMS, reason=f"cannot be read ({error.strerror})")]
    problems = [Problem(where=name, reason="is not in SHA256SUMS") for name in sorted(unlisted)]
    compare = functools.partial(_compare, directory, quick=quick)
    compared = _at_once(compare, entries[part::parts])
    return problems + [problem for problem in compared if problem is not None]


def _at_once(function: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Returns the results in order, computed by a thread for each core, at most `_THREADS`."""
    items = list(items)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        try:
            futures = [pool.submit(function, item) for item in items]
        except RuntimeError:  # the script has ended (`run.exiting`): no thread starts
            pool.shutdown(cancel_futures=True)
            return [function(item) for item in items]
        return [future.result() for future in futures]


def _render(entries: list[_Entry]) -> str:
    lines = []
    for entry in entries:
        lines.append(f"{entry.sha256}  {entry.name}\n")
        if entry.digest is not None:
            lines.append(f"# fmix32-pair {entry.digest} {entry.size}\n")
    body = "".join(lines)
    return f"# checksum {hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def _parse(text: str) -> list[_Entry]:
    """Returns the entries of SHA256SUMS. Raises ValueError unless `write` made the text, to the
    bit.
    """
    *lines, end = text.split("\n")
    if end:
        raise ValueError("its last line is cut")
    covered = bool(lines) and lines[0].startswith("#")
    entries = []
    for line in lines[covered:]:
        if match := _FILE.fullmatch(line):
            entries.append(_Entry(sha256=match[1], name=match[2]))
        elif (match := _DIGEST.fullmatch(line)) and entries and entries[-1].digest is None:
            last = entries.pop()
            entries.append(
                _Entry(name=last.name, sha256=last.sha256, digest=match[1], size=int(match[2]))
            )
        else:
            raise ValueError(f"it has the line {line[:100]!r}")
    if not entries:
        raise ValueError("it lists no file")
    if covered and _render(entries) != text:
        raise ValueError("its lines do not have the sum that its first line states")
    if not covered and any(entry.digest is not None for entry in entries):
        raise ValueError("its first line is lost")
    return entries


def _entry(directory: Path, name: str) -> _Entry:
    path = directory / name
    size = path.stat().st_size
    if size < _LARGE_BYTES:
        return _Entry(name=name, sha256=_sha256(path))
    sha256, parts = hashlib.sha256(), []
    for start, block in _blocks(path):
        sha256.update(block.data)
        parts.append(_block_sums(block, start))
    return _Entry(name=name, sha256=sha256.hexdigest(), digest=_hex(parts), size=size)


def _compare(directory: Path, entry: _Entry, *, quick: bool) -> Problem | None:
    path = directory / entry.name
    try:
        if not quick or entry.digest is None:
            have, want, kind = _sha256(path), entry.sha256, "sha256"
        elif (size := path.stat().st_size) != entry.size:
            return Problem(
                where=entry.name, reason=f"has {size} bytes, committed were {entry.size}"
            )
        else:
            have, want, kind = _digest(path), entry.digest, "digest"
    except OSError as error:
        return Problem(where=entry.name, reason=f"cannot be read ({error.strerror})")
    if have == want:
        return None
    reason = f"{kind} is {have[:12]}..., SHA256SUMS says {want[:12]}..."
    return Problem(where=entry.name, reason=reason)


def _files(directory: Path) -> list[str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    names = (path.relative_to(directory).as_posix() for path in files)
    return sorted(name for name in names if name not in (SHA256SUMS, f"{SHA256SUMS}.partial"))


def _sha256(path: Path) -> str:
    sha256 = hashlib.sha256()
    for _, block in _blocks(path):
        sha256.update(block.data)
    return sha256.hexdigest()


def _digest(path: Path) -> str:
    return _hex([_block_sums(block, start) for start, block in _blocks(path)])


def _block_sums(block: np.ndarray, start: int) -> np.ndarray:
    """Returns the sums of the bytes from `start` on, as little-endian words padded with zeros."""
    if rest := -block.size % 4:
        block = np.concatenate([block, np.zeros(rest, np.uint8)])
    return total(word_sums(block.view("<u4"), start // 4))


def _hex(parts: list[np.ndarray]) -> str:
    x, y = total(parts)
    return f"{x:08x}{y:08x}"


def _blocks(path: Path) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the start of each block and its bytes; the next block overwrites them."""
    room = np.empty(_BLOCK_BYTES + 64, np.uint8)
    aligned = room[-room.ctypes.data % 64 :][:_BLOCK_BYTES]  # XLA copies what is not
    start = 0
    with open(path, "rb") as file:
        while size := file.readinto(aligned.data):
            yield start, aligned[:size]
            start += size
