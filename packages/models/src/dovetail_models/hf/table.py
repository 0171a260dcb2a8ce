# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A family's table of names, and its config.json, each one description that works both ways."""

import dataclasses
import difflib
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from dovetail_models.build import AnyConfig
from dovetail_models.hf.ops import Op


@dataclasses.dataclass(frozen=True)
class Row:
    """`ours` is the path of a leaf, `theirs` the name of the tensor that holds it by `op`.

    `{i}` in both is a layer. `{e}` in `theirs` alone stacks tensors: entry e of the leaf's first
    axis is the op of tensor e. Rows whose ops take different parts may share a tensor.
    """

    theirs: str
    ours: str
    op: Op


Table = tuple[Row, ...]
# {path of a leaf: (name of its tensor, op)}
Sources = dict[str, tuple[str, Op]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """How one family is written on disk.

    `table` is what save writes; `layouts` are other tables that files come in, which are only read
    unless `table` lacks a row for some leaf: save writes the first that names all.
    `prefix` begins the name of every tensor but the head, `tied[0]`; the tables leave it out, and
    files may. `inert` are the config keys that alter no computation. `tied` is the tensor that a
    tied model may store a second time, and the one that it must equal. `buffers` match tensors that
    are not parameters and may be present; `dropped` gives patterns of parameters that a file may
    hold and that no module here computes, which are left out with a warning. In these patterns
    `{i}` is a number and `*` anything. `fit` adapts a config to the names of the tensors in the
    files, where config.json does not tell which parts of the model they hold.
    """

    read: Callable[["Keys"], AnyConfig]
    write: Callable[[Any], dict[str, Any]]
    table: Table
    layouts: tuple[Table, ...] = ()
    prefix: str = ""
    inert: frozenset[str]
    tied: tuple[str, str] | None
    buffers: tuple[str, ...] = ()
    dropped: Callable[[Any], tuple[str, ...]] = lambda config: ()
    fit: Callable[[Any, Collection[str]], AnyConfig] = lambda config, names: config

    def on_disk(self, name: str) -> str:
        """The name in a file of a tensor of the tables."""
        is_head = self.tied is not None and name == self.tied[0]
        return name if is_head else self.prefix + name


def candidates(family: Family, leaves: Collection[str]) -> list[Sources]:
    """The sources of the leaves in each table that names them all, beginning with what save writes.

    Raises ValueError if none does, as `sources` of the family's `table`.
    """
    tables = family.table, *family.layouts
    complete = [found for found, nameless in (_named(t, leaves) for t in tables) if not nameless]
    return complete or [sources(family.table, leaves)]


def sources(table: Table, leaves: Iterable[str]) -> Sources:
    """{path of a leaf: (name of its tensor, op)}; the name of a stack keeps its `{e}`.

    Raises ValueError for leaves that no row names: other parameters than the family's.
    """
    found, nameless = _named(table, leaves)
    if nameless:
        raise ValueError(
            f"Every parameter must be one that the family's files name, got {listed(nameless)}. "
            "Merge adapters (lora.merge), or remove what surgery added, first."
        )
    return found


def _named(table: Table, leaves: Iterable[str]) -> tuple[Sources, list[str]]:
    found: Sources = {}
    nameless = []
    for leaf in leaves:
        rows = [(row, match) for row in table if (match := _match(row.ours, leaf))]
        assert len(rows) <= 1, (leaf, rows)
        if not rows:
            nameless.append(leaf)
            continue
        row, match = rows[0]
        found[leaf] = (row.theirs.replace("{i}", match.groupdict().get("i", "")), row.op)
    return found, nameless


def listed(names: Iterable[str], *, limit: int = 20, between: str = ", ") -> str:
    """The names, or the first `limit` and how many more there are."""
    names = list(names)
    more = [f"and {len(names) - limit} more"] if len(names) > limit else []
    return between.join([*names[:limit], *more])


def dotted(path: tuple[Any, ...]) -> str:
    """`layers.7.attn.q.kernel` of a path of names and indices."""
    return ".".join(map(str, path))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is that of a tensor."""
    return any(_match(pattern, name) for pattern in patterns)


def near(name: str, options: Iterable[str]) -> str:
    """` (near: ...)` with the closest of `options`, or nothing."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f" (near: {close[0]})" if close else ""


def _match(pattern: str, name: str) -> re.Match[str] | None:
    return _compiled(pattern).fullmatch(name)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\*", ".*"))


class Keys:
    """The keys of a config.json, each taken once, so that what nobody took can be refused."""

    def __init__(self, values: Mapping[str, Any], *, allow: tuple[str, ...] = ()):
        self._rest = dict(values)
        self.allow = allow

    def inner(self, name: str) -> "Keys":
        """The keys of the object that is the value of a key."""
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise ValueError(
                f"config.json key {name!r} must be an object, got {name}={value!r}. "
                "Correct config.json."
            )
        return Keys(value, allow=self.allow)

    def __contains__(self, name: str) -> bool:
        return name in self._rest

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
