# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Scalars for TensorBoard, over restarts as one run.

An event file cannot be continued, so each process writes its own file into the run's directory. A
resumed run starts before the end of its curve. TensorBoard supports this: a session that starts at
a step hides later points of earlier files.
"""

import struct
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes event files to `directory`, which belongs to one run. Needs the extra `tensorboard`.

    Names are tags; the text before a "/" groups them. Values are float32; NaN and infinity are
    written as such, and TensorBoard marks them. Each write is handed to the operating system before
    it returns, so a killed process loses none.

    If the directory has event files, the run was resumed at the step of the first write: points of
    later steps are hidden. Those of that step stay unless the new run measures them again. A run
    that starts at step 0 hides all.

    Args:
        directory: Directory of the run.
        now: Clock.

    Raises:
        ModuleNotFoundError: The extra is not installed.
    """

    def __init__(self, directory: str | Path, *, now: Callable[[], float] = time.time) -> None:
        try:
            from tensorboardX import record_writer  # pyright: ignore[reportMissingImports]
            from tensorboardX.proto import event_pb2  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "TensorBoard needs tensorboardX, got no module of that name; "
                "type: pip install dovetail-train[tensorboard]"
            ) from error
        self._checksum, self._event = record_writer.masked_crc32c, event_pb2
        self._directory, self._now = Path(directory), now
        self._file: Any = None
        self._first, self._written = 0, frozenset[str]()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._file is None:
            self._begin(step)
        known = self._written if step == self._first else ()
        event = self._event.Event(wall_time=self._now(), step=step)
        for name, value in scalars.items():
            if name not in known:
                event.summary.value.add(tag=name, simple_value=float(value))
        if event.summary.value:
            self._append(event)

    def close(self) -> None:
        """Closes the file; the next write opens another."""
        if self._file is not None:
            self._finish()
            self._file = None

    def _begin(self, step: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        earlier = sorted(self._directory.glob("events.out.tfevents.*"))
        self._first = step
        self._written = frozenset(self._tags(earlier, step)) if step else frozenset()
        # TensorBoard reads the files of a directory in the order of their names.
        name = f"events.out.tfevents.{int(self._now()):010d}.{len(earlier):05d}"
        # Unbuffered, so that what was written outlives a kill. The writer of tensorboardX would
        # force each event to the disk, which takes longer than a short step.
        self._file = (self._directory / name).open("xb", buffering=0)
        self._finish = weakref.finalize(self, self._file.close)
        self._append(self._event.Event(wall_time=self._now(), file_version="brain.Event:2"))
        if earlier:
            start = self._event.Event(wall_time=self._now(), step=step + 1 if step else 0)
            start.session_log.status = self._event.SessionLog.START
            self._append(start)

    def _append(self, event: Any) -> None:
        data = event.SerializeToString()
        size = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", self._checksum(block)) for block in (size, data))
        self._file.write(size + next(sums) + data + next(sums))

    def _tags(self, files: list[Path], step: int) -> Iterator[str]:
        """Yields the tags of that step in the files."""
        for file in files:
            for record in _records(file.read_bytes()):
                event = self._event.Event.FromString(record)
                if event.step == step:
                    yield from (value.tag for value in event.summary.value)


def _records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a TFRecord file: length u64, its checksum u32, the bytes, their
    checksum u32.

    An incomplete last record is left out. (tensorflow/core/lib/io/record_writer.h)
    """
    start = 0
    while start + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        stop = start + 12 + length + 4
        if stop > len(data):
            return
        yield data[start + 12 : stop - 4]
        start = stop
