# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Safetensors files whose tensors are written in any order, also in blocks.

Shapes and dtypes fix every byte's place. The files are allocated first (a full disk fails there,
before any read), and regions of tensors are written as they come.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

from dovetail_checkpoint._durable import sync
from dovetail_checkpoint.layout.region import write_region
from dovetail_checkpoint.layout.safetensors import encode, tensor_bytes
from dovetail_checkpoint.layout.tensor_index import INDEX_SUFFIX, encode_index

_STEM = "model"

# Of each tensor its shape and its dtype.
Leaves = Mapping[str, tuple[tuple[int, ...], str]]


class TensorFiles:
    """The files of one export, as a context manager; call `finish` inside it.

    Args:
        directory: Directory of the files.
        leaves: Shape and dtype of the tensors by name. Files take them in natural order of their
            names.
        file_bytes: Size limit of each file, except for one larger tensor.
        metadata: Texts for each file's header.

    Raises:
        OSError: The disk is full.
    """

    def __init__(
        self, directory: Path, leaves: Leaves, *, file_bytes: int, metadata: Mapping[str, str]
    ) -> None:
        self._directory = directory
        self._metadata = dict(metadata)
        self._leaves = {
            file: {name: leaves[name] for name in names}
            for file, names in _shared_out(leaves, file_bytes).items()
        }
        encoded = {f: encode(tensors, metadata=metadata) for f, tensors in self._leaves.items()}
        self._headers = {file: header for file, (_, header) in encoded.items()}
        self._bytes = {
            file: len(data) + sum(tensor_bytes(d, s) for s, d in self._leaves[file].values())
            for file, (data, _) in encoded.items()
        }
        self._file_of = {name: file for file, names in self._leaves.items() for name in names}
        self._left = {name: math.prod(shape) for name, (shape, _) in leaves.items()}
        self._descriptors: dict[str, int] = {}
        self._opened = ExitStack()

    def __enter__(self) -> "TensorFiles":
        with self._told(), ExitStack() as stack:
            for file, size in self._bytes.items():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(self._directory / file, flags, 0o666)
                stack.callback(os.close, descriptor)
                _allocate(descriptor, size)
                self._descriptors[file] = descriptor
            self._opened = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.close()

    def write(self, name: str, offset: Sequence[int], array: np.ndarray) -> None:
        """Writes a block of a tensor.

        Args:
            name: Name of the tensor.
            offset: First index of the block.
            array: The block.
        """
        file = self._file_of[name]
        tensor = self._headers[file].tensors[name]
        region = tuple((o, o + n) for o, n in zip(offset, array.shape, strict=True))
        with self._told():
            write_region(self._descriptors[file], tensor.start, tensor.shape, region, array)
        self._left[name] -= array.size

    def finish(self, digests: Mapping[str, str]) -> None:
        """Writes the digests of all tensors into the headers, adds the index, syncs all to disk."""
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
                text = np.frombuffer(data, np.uint8)
                write_region(self._descriptors[file], 0, text.shape, [(0, text.size)], text)
                os.fsync(self._descriptors[file])
            if len(headers) > 1:
                path = self._directory / f"{_STEM}{INDEX_SUFFIX}"
                with open(path, "x", encoding="utf-8") as index:
                    index.write(encode_index(headers))
                    index.flush()
                    os.fsync(index.fileno())
            sync(self._directory)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            size = sum(self._bytes.values())
            raise OSError(
                error.errno,
                f"{self._directory} must take {size} bytes, got {error.strerror}; free space, or "
                "give another directory",
            ) from error


def _shared_out(leaves: Leaves, file_bytes: int) -> dict[str, list[str]]:
    """Returns the names of the tensors of each file, by file name."""
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
    """Sorts layers.2 before layers.10, so a layer's tensors share a file."""
    return [int(x) if x.isdecimal() else x for x in re.split(r"([0-9]+)", name)]


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:  # macOS: a full disk is found while writing
        os.ftruncate(descriptor, size)
