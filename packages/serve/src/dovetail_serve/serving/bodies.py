# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Bodies`: a bound on the memory of all request bodies together.

A limit for one body bounds nothing if a thousand connections send one each. Bytes count from their
arrival until the request is answered, because arrays of a request are views of its body. A length
that is only declared does not count, or clients that send nothing could keep all others out.
"""

import contextlib
from collections.abc import Iterator

from dovetail_serve.errors import QueueFull

# Bodies of the largest size that a server holds at once; with 64 MiB each, 1 GiB.
LARGEST_BODIES = 16
# Bodies are held for as long as their requests run, usually far less than a second.
_RETRY_AFTER_S = 1.0


class Bodies:
    """Bytes of request bodies that a server holds.

    Args:
        max_body: Largest size of one body in bytes. All together have `LARGEST_BODIES` times that.

    Attributes:
        held: Bytes now.
    """

    def __init__(self, max_body: int) -> None:
        self.held = 0
        self._limit = LARGEST_BODIES * max_body

    def check(self, size: int) -> None:
        """Raises QueueFull if `size` more bytes are too many."""
        if self.held + size > self._limit:
            raise QueueFull(
                f"bodies of all open requests must have at most {self._limit} bytes, got "
                f"{self.held} and {size} more; try again later, or raise max_body of the server",
                retry_after_s=_RETRY_AFTER_S,
            )

    def hold(self, size: int) -> None:
        """Counts `size` bytes more. Raises QueueFull if they are too many."""
        self.check(size)
        self.held += size

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Counts `size` bytes more inside of the block. Raises QueueFull if they are too many."""
        self.hold(size)
        try:
            yield
        finally:
            self.release(size)

    def release(self, size: int) -> None:
        """Counts `size` bytes less."""
        self.held -= size
