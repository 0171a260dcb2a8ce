# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Values of rows by key, kept in memory or in append-only files of a directory.

A file is one line of JSON, its header, and then records of one size: key, arrays, checksum. Each
writer begins a new file and never changes another's, so processes need no lock, and a record that
a kill cut short is the last of its file. Readers skip it. Records are not flushed to the disk: a
killed process loses none that it wrote, a power failure may, and the checksums tell.
"""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

KEY_BYTES = 16  # of blake2b: equal keys of two different rows are out of reach
_SUM_BYTES = 4  # of CRC-32
_FORMAT = "dovetail_tune fields 1"
_NAMES_SHOWN = 3  # parameters named by an error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One array of a row.

    Attributes:
        name: Name of the field.
        dtype: Its dtype, little-endian, such as "<f4".
        per_token: Whether the array has a first axis over the tokens of the row.
        shape: Shape after that.
    """

    name: str
    dtype: str
    per_token: bool
    shape: tuple[int, ...] = ()

    def shape_of(self, length: int) -> tuple[int, ...]:
        """Returns the shape for a row of `length` tokens."""
        return (length, *self.shape) if self.per_token else self.shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Everything that determines the values, beside the row.

    Attributes:
        columns: Arrays of a record.
        scorer: Name and options of the function.
        model: Digests of the model's parameters and settings by name.
    """

    columns: tuple[Column, ...]
    scorer: str
    model: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the first column, with which the names of files begin."""
        return self.columns[0].name

    def header(self, length: int) -> dict[str, Any]:
        """Returns the header of a file for rows of `length` tokens, as JSON."""
        columns = [[c.name, c.dtype, list(c.shape_of(length))] for c in self.columns]
        return {
            "format": _FORMAT,
            "length": length,
            "columns": columns,
            "scorer": self.scorer,
            "model": dict(self.model),
        }


class Records:
    """Arrays of rows by key, f32 and i32, bit for bit.

    Args:
        directory: Folder of the files; it is created. None keeps the values in memory.
        origin: Origin of the values. Files of another origin are refused.

    Raises:
        ValueError: The folder has values of another model, scorer or shape under this name.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, origin: Origin) -> None:
        self._directory = None if directory is None else Path(directory)
        self._origin = origin
        self._memory: dict[bytes, bytes] = {}
        self._places: dict[bytes, tuple[int, int]] = {}  # descriptor and offset of the arrays
        self._descriptors: list[int] = []
        self._writers: dict[int, int] = {}  # descriptors by length of the rows
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in sorted(self._directory.glob(f"{origin.name}-*.records")):
                self._read(path)

    def __contains__(self, key: bytes) -> bool:
        return key in self._memory or key in self._places

    def __len__(self) -> int:
        return len(self._memory) + len(self._places)

    def get(self, key: bytes, *, length: int) -> dict[str, np.ndarray]:
        """Returns the arrays of a known row.

        Args:
            key: Key of the row.
            length: Tokens of the row.
        """
        if key in self._memory:
            content = self._memory[key]
        else:
            descriptor, offset = self._places[key]
            content = os.pread(descriptor, self._arrays_bytes(length), offset)
        arrays, start = {}, 0
        for column in self._origin.columns:
            shape = column.shape_of(length)
            count = int(np.prod(shape, dtype=np.int64))
            arrays[column.name] = np.frombuffer(
                content, column.dtype, count=count, offset=start
            ).reshape(shape)
            start += count * np.dtype(column.dtype).itemsize
        return arrays

    def add(self, rows: Mapping[bytes, Mapping[str, np.ndarray]], *, length: int) -> None:
        """Keeps the arrays of new rows, in one write.

        Args:
            rows: Arrays by name, by key.
            length: Tokens of each row.
        """
        contents = {
            key: b"".join(
                np.ascontiguousarray(arrays[c.name], c.dtype).tobytes()
                for c in self._origin.columns
            )
            for key, arrays in rows.items()
        }
        if self._directory is None:
            self._memory |= contents
        elif contents:
            self._append(contents, length=length, directory=self._directory)

    def close(self) -> None:
        """Closes the files."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors, self._writers, self._places = [], {}, {}

    def _arrays_bytes(self, length: int) -> int:
        return sum(
            int(np.prod(c.shape_of(length), dtype=np.int64)) * np.dtype(c.dtype).itemsize
            for c in self._origin.columns
        )

    def _append(self, contents: Mapping[bytes, bytes], *, length: int, directory: Path) -> None:
        if length not in self._writers:
            self._writers[length] = self._create(directory, length)
        descriptor = self._writers[length]
        offset = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            _write(descriptor, b"".join(_records(contents)))
        except BaseException:
            del self._writers[length]  # may end in a part of a record: the next write begins a file
            raise
        for key, content in contents.items():
            self._places[key] = descriptor, offset + KEY_BYTES
            offset += KEY_BYTES + len(content) + _SUM_BYTES

    def _create(self, directory: Path, length: int) -> int:
        path = directory / f"{self._origin.name}-{uuid.uuid4().hex}.records"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._descriptors.append(descriptor)
        _write(descriptor, json.dumps(self._origin.header(length)).encode() + b"\n")
        return descriptor

    def _read(self, path: Path) -> None:
        damaged = 0
        with open(path, "rb") as file:
            line = file.readline()
            if not line.endswith(b"\n"):
                return  # its writer was killed before the first record
            length = self._check(path, line)
            descriptor = os.open(path, os.O_RDONLY)
            self._descriptors.append(descriptor)
            size = KEY_BYTES + self._arrays_bytes(length) + _SUM_BYTES
            offset = len(line)
            while len(record := file.read(size)) == size:
                if zlib.crc32(record[:-_SUM_BYTES]) == int.from_bytes(record[-_SUM_BYTES:], "big"):
                    self._places[record[:KEY_BYTES]] = descriptor, offset + KEY_BYTES
                else:
                    damaged += 1
                offset += size
        if damaged:
            warnings.warn(
                f"records of {path} must have their checksums, got {damaged} damaged of "
                f"{(offset - len(line)) // size}; these rows are computed again",
                stacklevel=2,
            )

    def _check(self, path: Path, line: bytes) -> int:
        """Returns the length of the file's rows. ValueError unless its origin is this one."""
        try:
            header = json.loads(line)
        except ValueError:
            header = None
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise ValueError(
                f"a file *.records must begin with its header, got {path} with {line[:40]!r}; "
                "move it away, or pass another directory"
            )
        own = self._origin.header(header["length"])
        for entry in ("columns", "scorer"):
            if header[entry] != own[entry]:
                raise ValueError(
                    f"values of {path.parent} must have the {entry} {own[entry]}, got "
                    f"{header[entry]} in {path.name}; pass another directory or another field"
                )
        if names := _differences(header["model"], own["model"]):
            raise ValueError(
                f"values of {path.parent} must come from this model, got {path.name} of a model "
                f"that differs in {names}; pass another directory, or the model that wrote it"
            )
        return header["length"]


def _records(contents: Mapping[bytes, bytes]) -> Iterator[bytes]:
    for key, content in contents.items():
        yield key + content + zlib.crc32(key + content).to_bytes(_SUM_BYTES, "big")


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _differences(a: Mapping[str, str], b: Mapping[str, str]) -> str:
    """Returns the names whose digests differ, the first of them by name; empty if none does."""
    names: Iterable[str] = sorted(a.keys() | b.keys())
    differing = [name for name in names if a.get(name) != b.get(name)]
    more = len(differing) - _NAMES_SHOWN
    shown = ", ".join(differing[:_NAMES_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
