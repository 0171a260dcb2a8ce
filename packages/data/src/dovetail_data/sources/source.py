# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of sources of records, and the parts of their input."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from dovetail_data._arguments import require_source

Record: TypeAlias = dict[str, Any]
"""The fields of one input record by name, such as "text" or "messages"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of the input that is read independently: a file, a range of its bytes, a row group.

    Args:
        name: Name for `explain`, relative to the source's paths, so that it does not depend on the
            machine.
        path: Path of the file.
        start: First unit of the piece; the unit is the source's own.
        stop: End of the piece.
        bytes: Approximate size in the file, for progress.
    """

    name: str
    path: str
    start: int
    stop: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Corrupt:
    """Takes the place of a record that cannot be read or encoded.

    Attributes:
        error: The rule, the value and the remedy, without the place. `locate` returns the place.
    """

    error: str


@runtime_checkable
class Source(Protocol):
    """Records in an order fixed by the input alone. Must pickle: workers read parts of it."""

    @property
    def fingerprint(self) -> str:
        """Digest. It changes when any record or their order changes."""
        ...

    def parts(self) -> Sequence[Part]:
        """Returns the input, cut into pieces that can be read independently.

        The cut must not depend on the number of workers.
        """
        ...

    def read(self, part: Part) -> Iterator[Record | Corrupt]:
        """Yields the records of one part, with `Corrupt` in the place of damaged ones.

        Raises:
            ValueError: The input has changed since the source was made.
        """
        ...

    def locate(self, part: Part, i: int) -> str:
        """Returns the place of the i-th item of `read`, for people: "a/b.jsonl:17"."""
        ...


def records(source: Source) -> Iterator[Record]:
    """Yields every record of `source`, in order.

    Raises:
        ValueError: A record is damaged.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import jsonl
        >>> _ = Path("b.jsonl").write_text('{"text": "Hello"}')
        >>> list(records(jsonl("b.jsonl")))
        [{'text': 'Hello'}]
    """
    require_source(source)
    for input_part in source.parts():
        for i, record in enumerate(source.read(input_part)):
            if isinstance(record, Corrupt):
                raise ValueError(f"{source.locate(input_part, i)}: {record.error}")
            yield record
