# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A file of results, to which a resumed run appends.

Each line has the index and the digest of its request, so a resumed run knows what is missing, and
notices other prompts, options or weights. A killed writer may leave the beginning of a line at the
end; the next one cuts it off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail_infer.batch.requests import RefusedError, Request

INDEX, DIGEST = "index", "digest"
_OPENING = f'{{"{INDEX}": '.encode()  # how each line begins


class Results:
    """Results by index, durable line by line. Use it as a context manager.

    One process at a time may hold the file.

    Args:
        out: The file. It may exist, with results of the same requests.
        requests: All requests, from `read`.

    Attributes:
        requests: All requests.
        done: Indices with a result.

    Raises:
        RefusedError: The file has something else, or another process writes to it.
    """

    def __init__(self, out: str | Path, requests: Sequence[Request]) -> None:
        self._file, self.requests = Path(out), requests
        self.done: set[int] = set()

    @property
    def missing(self) -> list[Request]:
        """The requests without a result, in their order."""
        return [request for request in self.requests if request.index not in self.done]

    def __enter__(self) -> Results:
        self._opened = self._file.open("ab+", buffering=0)
        try:
            self._lock()
            self._opened.truncate(self._check())
            folder = os.open(self._file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # the name of a new file is data of its directory
            finally:
                os.close(folder)
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(
                f"a file of results must have one writer, got {str(self._file)!r}, to which "
                "another process writes: wait for it, or name another out="
            ) from error

    def _check(self) -> int:
        """Fills `done`, and returns the number of bytes in whole lines."""
        self.done, end = set(), 0
        with self._file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):
                    fault, end = self._add(line), end + len(line)
                else:  # of a killed writer, if it is the beginning of a result
                    fault = "" if line[: len(_OPENING)] == _OPENING[: len(line)] else "no result"
                if fault:
                    raise RefusedError(
                        "a file of results must have results of the same prompts, options and "
                        f"weights alone, got {fault} in line {number} of {str(self._file)!r}: name "
                        "another out=, or delete the line"
                    )
        return end

    def _add(self, line: bytes) -> str:
        """Adds the result of a line to `done`. Returns its fault, or an empty text."""
        try:
            result = json.loads(line)
            index, digest = result[INDEX], result[DIGEST]
        except (ValueError, TypeError, KeyError):
            return "no result"
        if index not in range(len(self.requests)):
            return f"index={index} for {len(self.requests)} prompts"
        if index in self.done:
            return f"a second result of index={index}"
        if digest != self.requests[index].digest:
            return f"a result of index={index} for another prompt, other options or weights"
        self.done.add(index)
        return ""

    def write(self, results: Mapping[int, Mapping[str, Any]]) -> None:
        """Appends results by index, and returns when they are on the disk.

        Raises OSError, for example on a full disk. The file then ends as before.
        """
        content = b""
        for index, values in results.items():
            line = {INDEX: index, **values, DIGEST: self.requests[index].digest}
            content += json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        end = os.fstat(self._opened.fileno()).st_size
        try:
            while content:
                content = content[self._opened.write(content) :]
            os.fsync(self._opened.fileno())
        except OSError:
            self._opened.truncate(end)
            raise
        self.done.update(results)
