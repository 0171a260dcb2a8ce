# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Safetensors files that are written in any order, and appear together when they are complete.

Shapes and dtypes fix every byte's place, so the files are allocated first (a full disk fails
there, before anything is read) and regions of leaves are written as they come. All of it lies in
a directory beside the target, `.NAME.partial`, which is renamed at the end.
"""

import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

from dovetail_checkpoint import seal
from dovetail_checkpoint.region import write_region
from dovetail_checkpoint.safetensors import encode, tensor_bytes
from dovetail_checkpoint.tensor_index import INDEX_SUFFIX, encode_index

_STEM = "model"

# Of each tensor its shape and its dtype.
Leaves = Mapping[str, tuple[tuple[int, ...], str]]


class TensorFiles:
    """The files of one export; a context manager, which removes them unless `finish` was called.

    leaves: the tensors by name. The files take them in natural order of their names, each as many
        as fit in `file_bytes` but at least one.
    metadata: texts that go into each file's header.

    Raises ValueError if `directory` exists or is being written, OSError if the disk is full.
    """

    def __init__(
        self, directory: Path, leaves: Leaves, *, file_bytes: int, metadata: Mapping[str, str]
    ) -> None:
        self._directory = directory
        self._partial = directory.parent / f".{directory.name}.partial"
        self._metadata = dict(metadata)
        self._leaves = {
            file: {name: leaves[name] for name in names}
            for file, names in _shared_out(leaves, file_bytes).items()
        }
        self._headers = {
            file: encode(tensors, metadata=metadata)[1] for file, tensors in self._leaves.items()
        }
        self._file_of = {name: file for file, names in self._leaves.items() for name in names}
        self._left = {name: math.prod(shape) for name, (shape, _) in leaves.items()}
        self._descriptors: dict[str, int] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> "TensorFiles":
        _check_new(self._directory, self._partial)
        with self._told(), ExitStack() as stack:
            self._directory.parent.mkdir(parents=True, exist_ok=True)
            self._partial.mkdir()
            stack.callback(shutil.rmtree, self._partial, ignore_errors=True)
            for file in self._leaves:
                descriptor = os.open(self._partial / file, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                stack.callback(os.close, descriptor)
                _allocate(descriptor, self._file_bytes(file))
                self._descriptors[file] = descriptor
            self._cleanup = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    def write(self, name: str, offset: Sequence[int], array: np.ndarray) -> None:
        """Writes `array` to the region of the tensor that begins at `offset`."""
        file = self._file_of[name]
        tensor = self._headers[file].tensors[name]
        region = tuple((o, o + n) for o, n in zip(offset, array.shape, strict=True))
        with self._told():
            write_region(self._descriptors[file], tensor.start, tensor.shape, region, array)
        self._left[name] -= array.size

    def finish(self, digests: Mapping[str, str]) -> None:
        """Puts the digests of all tensors into the headers, and the files in their place."""
        incomplete = [name for name, left in self._left.items() if left]
        if incomplete:
            raise RuntimeError(
                f"each element of each tensor must be written once, got {incomplete[:3]} with "
                f"{[self._left[name] for name in incomplete[:3]]} left; write them, then finish"
            )
        with self._told():
            headers = {}
            for file, tensors in self._leaves.items():
                proof = {name: digests[name] for name in tensors}
                data, headers[file] = encode(tensors, metadata=self._metadata, digests=proof)
                os.pwrite(self._descriptors[file], data, 0)
                os.fsync(self._descriptors[file])
            if len(headers) > 1:
                with open(self._partial / f"{_STEM}{INDEX_SUFFIX}", "x", encoding="utf-8") as index:
                    index.write(encode_index(headers))
                    index.flush()
                    os.fsync(index.fileno())
            seal.sync_directory(self._partial)
            self._partial.rename(self._directory)
            seal.sync_directory(self._directory.parent)

    def _file_bytes(self, file: str) -> int:
        header, _ = encode(self._leaves[file], metadata=self._metadata)
        return len(header) + sum(tensor_bytes(d, s) for s, d in self._leaves[file].values())

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            size = sum(map(self._file_bytes, self._leaves))
            raise OSError(
                error.errno,
                f"{self._directory} must take {size} bytes, got {error.strerror}; free space, or "
                "give another directory",
            ) from error


def _check_new(directory: Path, partial: Path) -> None:
    if directory.exists():
        raise ValueError(
            f"directory must be new, got directory={directory}, which exists; give another one, "
            "or delete it"
        )
    if partial.exists():
        raise ValueError(
            f"directory must not be written by two, got {partial} of another export; if that one "
            "was killed, delete it"
        )


def _shared_out(leaves: Leaves, file_bytes: int) -> dict[str, list[str]]:
    """The names of the tensors of each file, by the file's name."""
    files: list[list[str]] = [[]]
    room = file_bytes
    for name in sorted(leaves, key=_natural):
        shape, dtype = leaves[name]
        size = tensor_bytes(dtype, shape)
        if files[-1] and size > room:
            files.append([])
            room = file_bytes
        files[-1].append(name)
        room -= size
    if len(files) == 1:
        return {f"{_STEM}.safetensors": files[0]}
    count = len(files)
    return {f"{_STEM}-{i:05d}-of-{count:05d}.safetensors": x for i, x in enumerate(files, 1)}


def _natural(name: str) -> list[str | int]:
    """layers.2 comes before layers.10, so that a layer's tensors lie in one file."""
    return [int(x) if x.isdecimal() else x for x in re.split(r"([0-9]+)", name)]


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:  # macOS: a full disk is found while writing
        os.ftruncate(descriptor, size)
