# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Records to train on, and held-out records.

The split depends only on each record's content, so a new record moves no other, and equal records
are on one side.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_source
from dovetail_data.sources.source import Corrupt, Part, Record, Source
from dovetail_data.sources.text import check_share, fraction_of
from dovetail_data.tokenizing.message_keys import without_nulls

Form: TypeAlias = Callable[[Record], Record | Corrupt]


def whole(record: Record) -> Record:
    """Returns the record as it is."""
    return record


@_elsewhere.hold_out
def hold_out(source: Source, *, share: float, form: Form | None = None) -> tuple[Source, Source]:
    """Splits a source into (train, held out) by a hash of each record. Reads all records.

    Add records, and all others stay on their side. The order of records and of their fields does
    not count, nor do null fields. Damaged records are among those to train on.

    Args:
        source: At least two records that differ.
        share: Share of the records to hold out, in (0, 1). At least one is on each side.
        form: Maps each record to the encoder's form, or to `Corrupt`; the split is that of the
            records before it. A function of a module: its name is in the fingerprint. None leaves
            records as they are.

    Raises:
        TypeError: `source` is not a source, such as a path.
        ValueError: `share` is outside (0, 1), or there are fewer than two different records.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import jsonl, records
        >>> _ = Path("h.jsonl").write_text("".join('{"n": %d}\\n' % n for n in range(9)))
        >>> train, held_out = hold_out(jsonl("h.jsonl"), share=0.2)
        >>> list(records(held_out))
        [{'n': 4}, {'n': 6}, {'n': 8}]
    """
    require_source(source)
    check_share(share)
    read = itertools.chain.from_iterable(map(source.read, source.parts()))
    numbers = np.array([number_of(x) for x in read if not isinstance(x, Corrupt)])
    if len(np.unique(numbers)) < 2:
        raise ValueError(
            f"a split into train and held-out needs at least 2 different records, got "
            f"{len(numbers)} records, {len(np.unique(numbers))} different: add records"
        )
    boundary = float(share)
    if not (numbers < boundary).any():
        boundary = float(np.nextafter(numbers.min(), 1))
    elif (numbers < boundary).all():
        boundary = float(numbers.max())
    options = {"source": source, "boundary": boundary, "form": form or whole}
    return Side(held_out=False, **options), Side(held_out=True, **options)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One side of a split, as `hold_out` returns it. It is a source.

    Args:
        source: All records.
        boundary: A record is held out if its number in [0, 1) is below.
        held_out: The side.
        form: Maps each record to the encoder's form, or to `Corrupt`.
    """

    source: Source
    boundary: float
    held_out: bool
    form: Form

    @property
    def fingerprint(self) -> str:
        values = (self.source.fingerprint, self.boundary, self.held_out, self.form.__qualname__)
        return hashlib.sha256(repr(values).encode()).hexdigest()

    def parts(self) -> Sequence[Part]:
        return self.source.parts()

    def read(self, part: Part) -> Iterator[Record | Corrupt]:
        for _, record in self._numbered(part):
            yield record if isinstance(record, Corrupt) else self.form(record)

    def locate(self, part: Part, i: int) -> str:
        return self.source.locate(part, _places(self, part)[i])

    def _numbered(self, part: Part) -> Iterator[tuple[int, Record | Corrupt]]:
        for j, record in enumerate(self.source.read(part)):
            held = not isinstance(record, Corrupt) and number_of(record) < self.boundary
            if held == self.held_out:
                yield j, record


@functools.lru_cache(maxsize=16)
def _places(side: Side, part: Part) -> tuple[int, ...]:
    """Returns the places in the source of the records of a part, for messages."""
    return tuple(j for j, _ in side._numbered(part))


def number_of(record: Record) -> float:
    """Returns a number in [0, 1) that depends only on the content of a record.

    Columns of Parquet have null for an absent key, and lines of JSON need not.
    """
    text = json.dumps(without_nulls(record), sort_keys=True, default=repr)
    return fraction_of(text.encode("utf-8", "replace"))
