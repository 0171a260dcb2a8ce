# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches from one process to another without a pipe for their bytes.

A pipe moves 64 KiB at a time between two processes that both have to wake up for it, and pickles
are copied twice more. So arrays go to a file in memory. The receiver maps its pages and unlinks it:
the pages are freed with the last array over them.
"""

import dataclasses
import functools
import logging
import mmap
import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

_logger = logging.getLogger(__name__)
_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 1 << 16  # less goes through the pipe in one piece


class Exchange:
    """A directory in memory for the files of one pair of sender and receiver.

    It is deleted with this object, and at the latest with this process. Senders delete it too when
    the receiver is killed.
    """

    def __init__(self) -> None:
        place = _MEMORY if _MEMORY.is_dir() else None  # None: the usual one, cached by the kernel
        self.directory = tempfile.mkdtemp(prefix="dovetail-", dir=place)
        self.close = weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Sender:
    """A function `work` whose results are sent through the directory."""

    work: Callable[[Any], Any]
    directory: str

    def __call__(self, argument: Any) -> "Any | Sent":
        return send(self.work(argument), self.directory)


@dataclasses.dataclass(frozen=True)
class Sent:
    """A value with its arrays in a file.

    Args:
        path: The file.
        pickled: The value without its arrays.
        sizes: Sizes of the arrays in bytes.
    """

    path: str
    pickled: bytes
    sizes: list[int]

    def receive(self) -> Any:
        """Returns the value, and unlinks the file: its pages are the arrays."""
        with open(self.path, "r+b") as stream:
            os.unlink(self.path)
            pages = memoryview(mmap.mmap(stream.fileno(), sum(self.sizes)))
        buffers, begin = [], 0
        for size in self.sizes:
            buffers.append(pages[begin : begin + size])
            begin += size
        return pickle.loads(self.pickled, buffers=buffers)


def send(value: Any, directory: str) -> Any | Sent:
    """Returns the value as it goes through the pipe: itself, or Sent for large arrays."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [view.nbytes for view in raw]
    if sum(sizes) < _LEAST_BYTES:
        return value
    file, path = tempfile.mkstemp(dir=directory)
    try:
        _write(file, raw, sum(sizes))
    except OSError as error:
        os.unlink(path)
        _tell(directory, sum(sizes), str(error))
        return value
    finally:
        os.close(file)
    return Sent(path, pickled, sizes)


@functools.cache  # once, not with every batch
def _tell(directory: str, size: int, error: str) -> None:
    _logger.warning(
        "%s must hold a batch of %d bytes: got %s; batches pass through a slower pipe. Give it "
        "more memory, as in docker run --shm-size.",
        directory,
        size,
        error,
    )


def _write(file: int, views: list[memoryview], size: int) -> None:
    if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(file, 0, size)  # an error now, not a SIGBUS later
    for view in views:
        while view.nbytes:
            view = view[os.write(file, view) :]
