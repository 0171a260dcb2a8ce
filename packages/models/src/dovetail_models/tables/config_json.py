# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""config.json as a table of keys, used for reading and writing."""

import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail_models.tables.harmless import is_harmless

Values = Mapping[str, Any]
# {key: the values that a module computes}
Fixed = Mapping[str, tuple[Any, ...]]


def near(name: str, options: Iterable[str]) -> str:
    """Returns ` (near: ...)` with the closest option, or an empty string."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f" (near: {close[0]})" if close else ""


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


REQUIRED = object()
ANY = Keys.take  # reads any value


def count(keys: Keys, name: str, *, required: bool = True, least: int = 1) -> Any:
    """Reads a whole number.

    Args:
        keys: The keys of config.json.
        name: The key.
        required: Raise for a missing or null key. Otherwise the result is None.
        least: The least number.

    Raises:
        ValueError: The key is missing and required, or its value is not such a number.
    """
    value = keys.take(name, required=required)
    if value is not None and (type(value) is not int or value < least):
        raise ValueError(
            f"config.json key {name!r} must be a whole number above {least - 1}, got "
            f"{name}={value!r}. Correct config.json."
        )
    return value


def number(keys: Keys, name: str, *, required: bool) -> float | None:
    """Reads a number; see `count`.

    Args:
        keys: The keys of config.json.
        name: The key.
        required: Raise for a missing or null key. Otherwise the result is None.
    """
    value = keys.take(name, required=required)
    return None if value is None else float(value)


def whole(number: float) -> float | int:
    """Returns an integer for a whole number."""
    return int(number) if number == int(number) else number


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of config.json that holds an argument of the builder.

    Attributes:
        name: The key.
        ours: The argument.
        default: Value for a missing key. `REQUIRED`: a missing key is refused.
        reads: Takes the key and returns its value, or None for a missing one.
        writes: Returns the JSON value of an argument.
        null: Null is a value, None; otherwise it is read as a missing key.
    """

    name: str
    ours: str
    default: Any = REQUIRED
    reads: Callable[..., Any] = count
    writes: Callable[[Any], Any] = lambda value: value
    null: bool = False

    def read(self, keys: Keys, values: Values, absent: Values) -> Values:
        """Returns {argument: value}.

        Args:
            keys: The keys of config.json.
            values: The arguments that are already read.
            absent: The family's values for missing keys, by argument.
        """
        default = absent.get(self.ours, self.default)
        missing = self.name not in keys
        value = self.reads(keys, self.name, required=default is REQUIRED)
        return {self.ours: default if value is None and (missing or not self.null) else value}

    def write(self, values: Values) -> Values:
        """Returns {key: value} from the arguments."""
        return {self.name: self.writes(values[self.ours])}


def read_keys(keys: Keys, table: Iterable[Any], absent: Values) -> dict[str, Any]:
    """Reads a table of keys.

    Args:
        keys: The keys of config.json.
        table: The table, in the order of reading.
        absent: Values of missing keys, by argument.

    Returns:
        The arguments by name.

    Raises:
        ValueError: A key is missing or has a wrong value.
    """
    values: dict[str, Any] = {}
    for key in table:
        values |= key.read(keys, values, absent)
    return values


def write_keys(table: Iterable[Any], values: Values) -> dict[str, Any]:
    """Returns the keys of a table from arguments by name."""
    return {name: value for key in table for name, value in key.write(values).items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigJson:
    """config.json of a family, both ways.

    Attributes:
        builder: Builder of the configuration. The keys of its arguments are read and written.
        keys: Keys that families have in common, in the order of reading.
        own: Keys of this family alone, or for the same arguments in place of those in `keys`.
        unread: Arguments without a key of their own.
        ignored: Keys that are taken and have no effect.
        absent: Values of missing keys, as in transformers, by argument.
        fixed: Keys with one meaning: the values that the modules compute. The first is written.
        expected: The same for keys that are not written.
        arguments: Returns the builder's arguments of a configuration, and perhaps more.
        more: Reads further arguments, from the keys and the arguments read before.
        then: Adapts the configuration to further keys. It also receives all arguments.
        also: Returns further keys to write, or other values for keys.
    """

    builder: Callable[..., Any]
    keys: tuple[Any, ...] = ()
    own: tuple[Any, ...] = ()
    unread: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    absent: Values = dataclasses.field(default_factory=dict)
    fixed: Fixed
    expected: Fixed = dataclasses.field(default_factory=dict)
    arguments: Callable[[Any], Values] = vars
    more: Callable[[Keys, Values], Values] = lambda keys, values: {}
    then: Callable[[Keys, Any, Values], Any] = lambda keys, config, values: config
    also: Callable[[Any], Values] = lambda config: {}

    def _keys(self) -> list[Any]:
        """Returns the keys of the builder's arguments."""
        known = {key.ours: key for key in (*self.keys, *self.own)}
        taken = inspect.signature(self.builder).parameters.keys() - {*self.unread}
        return [key for ours, key in known.items() if ours in taken]

    def read(self, keys: Keys) -> Any:
        """Returns the configuration.

        Raises:
            ValueError: A key is missing or has a value with no matching module.
        """
        for name, supported in {**self.fixed, **self.expected}.items():
            keys.expect(name, *supported)
        for name in self.ignored:
            keys.take(name)
        values = read_keys(keys, self._keys(), self.absent)
        values |= self.more(keys, values)
        return self.then(keys, self.builder(**values), values)

    def write(self, config: Any) -> dict[str, Any]:
        """Returns the keys of a configuration."""
        fixed = {name: supported[0] for name, supported in self.fixed.items()}
        return {**fixed, **write_keys(self._keys(), self.arguments(config)), **self.also(config)}
