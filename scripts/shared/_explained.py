# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One shape for all results of `explain`: a table for a person, rows and values for a program.

Kept verbatim in several packages: edit scripts/shared, then run scripts/copies.py.
"""

import dataclasses
import html
import json
from collections.abc import Iterator, Mapping
from typing import Any


class Explained:
    """A frozen dataclass with `rows`, one for each thing that is explained. `str` is its table."""

    rows: Any  # a tuple of frozen dataclasses: the subclass has their type

    def _summary(self) -> str:
        """Returns the table in a few words."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"Explanation({self._summary()}; print it)"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return self.rows[i]

    def json(self) -> dict[str, Any]:
        """Returns plain values for `json.dumps`: the rows, then the other fields by name."""
        fields = [f.name for f in dataclasses.fields(self) if f.repr]  # pyright: ignore[reportArgumentType] -- a subclass is a dataclass
        values = {name: getattr(self, name) for name in dict.fromkeys(["rows", *fields])}
        return json.loads(json.dumps(values, default=_plain))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return dict(value) if isinstance(value, Mapping) else str(value)
