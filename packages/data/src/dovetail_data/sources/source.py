# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a source of records is, and the parts into which it cuts its input."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

Record: TypeAlias = dict[str, Any]
"""One document as its file has it: a text under "text", a chat under "messages", .. by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of the input that is read on its own: a file, some bytes of it, a row group, ..

    name: what `explain` shows; relative to what the source was given, so that it says nothing of
    the machine. path: where the file lies now. start, stop: which piece of the file, in a unit of
    the source's own. bytes: how much of the file that is, about; progress counts it.
    """

    name: str
    path: str
    start: int
    stop: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Corrupt:
    """In the place of a record that cannot be read or encoded.

    error: what must hold, what came, what to do; without where it lies, which `locate` says.
    """

    error: str


@runtime_checkable
class Source(Protocol):
    """Records in an order fixed by the input alone. Must pickle: workers read parts of it."""

    @property
    def fingerprint(self) -> str:
        """Changes when any record, or their order, changes."""
        ...

    def parts(self) -> Sequence[Part]:
        """The input, cut where it can be read independently; never depends on workers."""
        ...

    def read(self, part: Part) -> Iterator[Record | Corrupt]:
        """The records of one part. What is damaged comes as a Corrupt in its place, and what can
        still be read follows it; ValueError when the input is not what it was at the start."""
        ...

    def locate(self, part: Part, i: int) -> str:
        """Where the i-th item that `read` gives lies, as a person finds it: "a/b.jsonl:17"."""
        ...


def records(source: Source) -> Iterator[Record]:
    """Every record of `source`, in order; ValueError at the first that is corrupt."""
    for part in source.parts():
        for i, record in enumerate(source.read(part)):
            if isinstance(record, Corrupt):
                raise ValueError(f"{source.locate(part, i)}: {record.error}")
            yield record
