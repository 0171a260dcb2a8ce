# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of tensor names and config.json keys of a family, used for reading and writing."""

import dataclasses
import difflib
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from dovetail_models.build import AnyConfig
from dovetail_models.config import Attention
from dovetail_models.hf.harmless import is_harmless
from dovetail_models.hf.ops import Op
from dovetail_models.layer_config import Mlp


@dataclasses.dataclass(frozen=True)
class Row:
    """A pair of a tensor in the files and a leaf of the model.

    `{i}` in both names is a layer. `{e}`, only in `theirs`, makes a stack: entry e of the leaf's
    first axis comes from tensor e. Rows with different operations may share a tensor.

    Attributes:
        theirs: Tensor name, without the family's prefix.
        ours: Dotted path of the leaf.
        op: Operation from tensor to leaf.
    """

    theirs: str
    ours: str
    op: Op


Table = tuple[Row, ...]
# {path of a leaf: (name of its tensor, op)}
Sources = dict[str, tuple[str, Op]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Storage format of one family.

    In patterns, `{i}` is a number and `*` is anything.

    Attributes:
        read: Builds the configuration from config.json keys.
        write: Returns the config.json keys of a configuration.
        table: Rows for saving and loading.
        layouts: Further tables for loading. Saving uses the first table with a row for every leaf,
            so a layout is written only if `table` lacks one.
        prefix: Prefix of every tensor name except the head's, `tied[0]`. Tables leave it out; files
            may.
        inert: config.json keys without effect in this family alone; `HARMLESS` has those of all.
        tied: Names of a redundant copy of the embedding and of the embedding, which must be equal.
            None: no tied head.
        buffers: Patterns of tensors without a parameter in the model, such as masks. Ignored.
        dropped: Returns patterns of parameters without a module here. They are omitted with a
            warning.
        attention: Class of a decoder's attention in every layer.
        blocks: Classes of a decoder's feed-forward blocks; each layer has one of them.
        rope: The layers of a decoder have RoPE.
        fit: Adapts a configuration to the tensor names of the files, for families with optional
            components not described in config.json.
    """

    read: Callable[["Keys"], AnyConfig]
    write: Callable[[Any], dict[str, Any]]
    table: Table
    layouts: tuple[Table, ...] = ()
    prefix: str = ""
    tied: tuple[str, str] | None
    inert: frozenset[str] = frozenset()
    buffers: tuple[str, ...] = ()
    dropped: Callable[[Any], tuple[str, ...]] = lambda config: ()
    attention: type = Attention
    blocks: tuple[type, ...] = (Mlp,)
    rope: bool = True
    fit: Callable[[Any, Collection[str]], AnyConfig] = lambda config, names: config

    def on_disk(self, name: str) -> str:
        """Returns the name in a file for a name of the tables."""
        is_head = self.tied is not None and name == self.tied[0]
        return name if is_head else self.prefix + name


def candidates(family: Family, leaves: Collection[str]) -> list[Sources]:
    """Returns the sources of the leaves, for each table with rows for all of them.

    The table for saving comes first.

    Raises:
        ValueError: No table has a row for every leaf.
    """
    tables = family.table, *family.layouts
    complete = [named for named, nameless in (_named(t, leaves) for t in tables) if not nameless]
    return complete or [sources(family.table, leaves)]


def sources(table: Table, leaves: Iterable[str]) -> Sources:
    """Returns {path of a leaf: (tensor name, op)}. The name of a stack keeps `{e}`.

    Raises:
        ValueError: A leaf has no row, so it is not a parameter of the family.
    """
    named, nameless = _named(table, leaves)
    if nameless:
        raise ValueError(
            f"Every parameter must be one that the family's files name, got {listed(nameless)}. "
            "Merge adapters (lora.merge), or remove what surgery added, first."
        )
    return named


def _named(table: Table, leaves: Iterable[str]) -> tuple[Sources, list[str]]:
    """Returns the sources of the leaves, and the leaves without a row."""
    named: Sources = {}
    nameless = []
    for leaf in leaves:
        rows = [(row, match) for row in table if (match := _match(row.ours, leaf))]
        assert len(rows) <= 1, (leaf, rows)
        if not rows:
            nameless.append(leaf)
            continue
        row, match = rows[0]
        named[leaf] = (row.theirs.replace("{i}", match.groupdict().get("i", "")), row.op)
    return named, nameless


def listed(names: Iterable[str], *, limit: int = 20, between: str = ", ") -> str:
    """Joins names, at most `limit` of them, with the count of the rest.

    Args:
        names: The names.
        limit: Number of names to show.
        between: Separator.
    """
    names = list(names)
    more = [f"and {len(names) - limit} more"] if len(names) > limit else []
    return between.join([*names[:limit], *more])


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches the tensor name."""
    return any(_match(pattern, name) for pattern in patterns)


def near(name: str, options: Iterable[str]) -> str:
    """Returns ` (near: ...)` with the closest option, or an empty string."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f" (near: {close[0]})" if close else ""


def _match(pattern: str, name: str) -> re.Match[str] | None:
    """Matches a whole name with a pattern."""
    return _compiled(pattern).fullmatch(name)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern."""
    return re.compile(re.escape(pattern).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\*", ".*"))


class Keys:
    """Keys of a config.json. Each is taken once; `extra` refuses unknown keys left over.

    Args:
        values: The keys and their values.
        allow: Unknown keys to accept.
    """

    def __init__(self, values: Mapping[str, Any], *, allow: tuple[str, ...] = ()):
        self._rest = dict(values)
        self.allow = allow

    def inner(self, name: str) -> "Keys":
        """Takes an object-valued key and returns its keys.

        Raises:
            ValueError: The value is not an object.
        """
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
        """Removes a key and returns its value, or `default` for a missing or null one.

        Args:
            name: The key.
            default: Value for a missing or null key.
            required: Raise for a missing or null key.

        Raises:
            ValueError: The key is required and missing.
        """
        if required and self._rest.get(name) is None:
            raise ValueError(
                f"config.json must hold {name!r}, got keys={sorted(self._rest)}"
                f"{near(name, self._rest)}. Add {name!r} to it."
            )
        value = self._rest.pop(name, None)
        return default if value is None else value

    def expect(self, name: str, *supported: Any) -> None:
        """Takes a key and refuses other values than `supported`; the first is the default.

        Raises:
            ValueError: No module here computes the value.
        """
        value = self.take(name, supported[0])
        if value not in supported:
            raise ValueError(
                f"config.json key {name!r} must be one of {supported}, got {name}={value!r}. "
                "No module here computes another; use the library that wrote the file."
            )

    def extra(self, inert: frozenset[str], allow: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Returns the keys not taken, with their values as JSON text.

        Args:
            inert: Keys without effect in the family.
            allow: Unknown keys to accept.

        Raises:
            ValueError: A key is neither inert nor allowed, nor harmless in any family.
        """
        known = inert | set(allow)
        unknown = sorted(
            name
            for name, value in self._rest.items()
            if name not in known and not is_harmless(name, value)
        )
        if unknown:
            listed = ", ".join(f"{name}={self._rest[name]!r}" for name in unknown)
            raise ValueError(
                "Every key of config.json must be known, since it may alter the model, got "
                f"{listed}. If these do not, pass allow={tuple(unknown)!r}."
            )
        return tuple((name, json.dumps(value)) for name, value in sorted(self._rest.items()))
