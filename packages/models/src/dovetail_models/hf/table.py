# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A family's table of names, and its config.json, each one description that works both ways."""

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail_models.config import Config
from dovetail_models.hf.ops import Op


@dataclasses.dataclass(frozen=True)
class Row:
    """`theirs` is the name of a tensor, `ours` the path of a leaf; `{i}` in both is a layer."""

    theirs: str
    ours: str
    op: Op


Table = tuple[Row, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """How one family is written on disk.

    `inert` are the config keys that alter no computation. `tied` is the tensor that a tied model
    may store a second time, and the one that it must equal. `buffers` match tensors that are not
    parameters and may be present.
    """

    read: Callable[["Keys"], Config]
    write: Callable[[Config], dict[str, Any]]
    table: Table
    inert: frozenset[str]
    tied: tuple[str, str]
    buffers: tuple[str, ...] = ()


def sources(table: Table, leaves: Iterable[str]) -> dict[str, tuple[str, Op]]:
    """{path of a leaf: (name of its tensor, op)}; every leaf must match exactly one row."""
    found: dict[str, tuple[str, Op]] = {}
    for leaf in leaves:
        rows = [(row, match) for row in table if (match := _match(row.ours, leaf))]
        assert len(rows) == 1, (leaf, rows)
        row, match = rows[0]
        found[leaf] = (row.theirs.format(**match.groupdict()), row.op)
    return found


def dotted(path: tuple[Any, ...]) -> str:
    """`layers.7.attn.q.kernel` of a path of names and indices."""
    return ".".join(map(str, path))


def is_buffer(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a tensor in a file is one of the family's buffers."""
    return any(_match(pattern, name) for pattern in patterns)


def near(name: str, options: Iterable[str]) -> str:
    """` (near: ...)` with the closest of `options`, or nothing."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f" (near: {close[0]})" if close else ""


def _match(pattern: str, name: str) -> re.Match[str] | None:
    return re.fullmatch(re.escape(pattern).replace(r"\{i\}", r"(?P<i>\d+)"), name)


class Keys:
    """The keys of a config.json, each taken once, so that what nobody took can be refused."""

    def __init__(self, values: Mapping[str, Any]):
        self._rest = dict(values)

    def take(self, name: str, default: Any = None, *, required: bool = False) -> Any:
        """The value of a key, or the default; ValueError if it is required and missing."""
        if required and self._rest.get(name) is None:
            raise ValueError(
                f"config.json must hold {name!r}, got keys={sorted(self._rest)}"
                f"{near(name, self._rest)}. Add {name!r} to it."
            )
        value = self._rest.pop(name, None)
        return default if value is None else value

    def expect(self, name: str, *supported: Any) -> None:
        """Refuse a value of `name` other than those that the family's modules compute."""
        value = self.take(name, supported[0])
        if value not in supported:
            raise ValueError(
                f"config.json key {name!r} must be one of {supported}, got {name}={value!r}. "
                "No module here computes another; use the library that wrote the file."
            )

    def extra(self, inert: frozenset[str], allow: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """The keys not taken, as JSON text; ValueError for one neither inert nor allowed."""
        unknown = sorted(set(self._rest) - inert - set(allow))
        if unknown:
            listed = ", ".join(f"{name}={self._rest[name]!r}" for name in unknown)
            raise ValueError(
                "Every key of config.json must be known, since it may alter the model, got "
                f"{listed}. If these do not, pass allow={tuple(unknown)!r}."
            )
        return tuple((name, json.dumps(value)) for name, value in sorted(self._rest.items()))
