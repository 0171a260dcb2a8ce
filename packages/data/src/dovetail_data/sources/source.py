# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a source of documents is, and the parts into which it cuts its input."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Bytes [start, stop) of one input file.

    name: what `explain` shows; relative to what the source was given, so that it says nothing of
    the machine. path: where the file lies now.
    """

    name: str
    path: str
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.stop - self.start


@runtime_checkable
class Source(Protocol):
    """Documents in an order fixed by the input alone. Must pickle: workers read parts of it."""

    @property
    def fingerprint(self) -> str:
        """Changes when any document, or their order, changes."""
        ...

    def parts(self) -> Sequence[Part]:
        """The input, cut where it can be read independently; never depends on workers."""
        ...

    def read(self, part: Part) -> Iterator[dict[str, Any]]:
        """The documents of one part: each a dict with its text under "text"."""
        ...
