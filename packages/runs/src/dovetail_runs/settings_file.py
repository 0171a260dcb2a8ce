# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings in a TOML file: the options of `add_options`, by the groups of the help.

    steps = 100

    [adam]
    learning_rate = 0.001

A key is the name of a field. Options of the command line replace those of the file:
`{**read_options(file, Settings), **vars(args)}`.
"""

import dataclasses
import json
import textwrap
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dovetail_runs._command import similar
from dovetail_runs.settings import arguments, fields_of, help_of, is_group

_WIDTH = 88  # of a comment
_TOP = ""  # the keys above all sections
_KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_EXAMPLES = {int: "8", float: "0.5", str: '"..."', bool: "true"}


def read_options(file: str | Path, kind: type) -> dict[str, Any]:
    """Returns the options in a file by name of the field, in the types of the settings.

    Args:
        file: The TOML file.
        kind: The class of the settings, as for `add_options`.

    Raises:
        ValueError: The file is missing or not TOML, or has an unknown section or key or a value of
            a wrong type.

    Example:

        >>> from dataclasses import dataclass
        >>> from pathlib import Path
        >>> from dovetail_runs import options_text, read_options
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Settings:
        ...     steps: int = 10
        >>> _ = Path("s.toml").write_text(options_text(Settings, {"steps": 3}))
        >>> read_options("s.toml", Settings)
        {'steps': 3}
    """
    content, known = read_toml(file), _sections(kind)
    given: dict[str, Any] = {}
    for section, values in content.items():
        if section in known[_TOP]:
            given[section] = _value(known[_TOP][section], values, place=section, file=file)
            continue
        if section not in known:
            _refuse_misplaced(section, known, f"{section} at the top of {str(file)!r}")
            names = ", ".join([*known[_TOP], *(f"[{name}]" for name in known if name)])
            got = f"[{section}]" if isinstance(values, dict) else section
            raise ValueError(
                f"a key or a section must be one of {names}, got {got} in {str(file)!r}"
                f"{near(section, [*known[_TOP], *known])}: correct it or remove it"
            )
        if not isinstance(values, dict):
            raise ValueError(
                f"{section!r} must be a section, got {section} = {values!r} in {str(file)!r}: "
                f"write [{section}] on a line of its own"
            )
        fields = known[section]
        for name, value in values.items():
            if name not in fields:
                _refuse_misplaced(name, known, f"{name!r} in section [{section}] of {str(file)!r}")
                raise ValueError(
                    f"section [{section}] must hold options of that group, got {name!r} in "
                    f"{str(file)!r}{near(name, fields)}: write one of {', '.join(fields)}"
                )
            given[name] = _value(fields[name], value, place=f"{section}.{name}", file=file)
    return given


def options_text(kind: type, given: Mapping[str, Any]) -> str:
    """Returns a complete file: each option with its help, and its value or default.

    Options without a value are comments.

    Args:
        kind: The class of the settings, as for `add_options`.
        given: Values by name of the field.
    """
    lines = []
    for section, fields in _sections(kind).items():
        lines += ["", f"[{section}]"] if section else []
        for name, (field, _) in fields.items():
            help = help_of(field, in_words=False)
            lines += [f"# {line}" for line in textwrap.wrap(help, _WIDTH)]
            value = value_of(field, given)
            text = "..." if value is None else _text(value)
            lines.append(f"{'# ' if value is None else ''}{name} = {text}")
    return "\n".join(lines).strip() + "\n"


def option_values(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {field: value} of a file, with {group: {field: value}}; None without a value.

    Args:
        kind: The class of the settings, as for `add_options`.
        given: Values by name of the field. Others have defaults.
    """
    groups = {
        section: {name: value_of(field, given) for name, (field, _) in fields.items()}
        for section, fields in _sections(kind).items()
    }
    return {**groups.pop(_TOP), **groups}


def value_of(field: dataclasses.Field[Any], given: Mapping[str, Any]) -> Any:
    """Returns the given value of a field, or its default; None without one."""
    if field.name in given or field.default is field.default_factory is dataclasses.MISSING:
        return given.get(field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory()  # pyright: ignore[reportCallIssue]  of the third kind


def read_toml(file: str | Path) -> dict[str, Any]:
    """Returns the content of a file. ValueError if it cannot be read, or is no TOML."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"the settings must be a file that can be read, got {str(file)!r} ({error.strerror}): "
            "write one with options_text"
        ) from error
    except ValueError as error:  # of TOML, with line and column, or of UTF-8
        raise ValueError(
            f"the settings must be TOML, got {str(file)!r} ({error}): correct it, or write one "
            "with options_text"
        ) from error


def near(name: str, known: Collection[str]) -> str:
    """Returns the question after the nearest name, or an empty string."""
    other = similar(name, list(known))
    return f" (did you mean {other}?)" if other else ""


def _sections(kind: type) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Returns {section: {name: (field, type)}}, first the keys without a section."""
    sections: dict[str, dict[str, tuple[Any, Any]]] = {_TOP: {}}
    for field, hint in fields_of(kind):
        if is_group(hint):
            below = _sections(hint)
            sections[field.name] = below.pop(_TOP)
            sections |= below
        else:
            sections[_TOP][field.name] = (field, hint)
    return sections


def _text(value: Any) -> str:
    """Returns a value as TOML, whose strings are those of JSON."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, bool | int):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else json.dumps(str(value), ensure_ascii=False)


def _value(of: tuple[Any, Any], value: Any, *, place: str, file: str | Path) -> Any:
    """Returns a value of the file in the type of the settings, or raises ValueError."""
    parse = arguments(*of)
    convert = bool if of[1] is bool else parse.get("type", str)
    wanted = convert if convert in _KINDS else str  # a path's type is a function
    many = "nargs" in parse or parse.get("action") == "append"
    values = value if many and isinstance(value, list) else [value]
    accepted = (int, float) if wanted is float else wanted
    right = all(isinstance(v, accepted) and isinstance(v, bool) == (wanted is bool) for v in values)
    example = _EXAMPLES[wanted] if "choices" not in parse else _text(parse["choices"][0])
    if not right or (many and not isinstance(value, list)):
        expected = f"a list, each item {_KINDS[wanted]}" if many else _KINDS[wanted]
        raise ValueError(
            f"{place} must be {expected}, got {value!r} in {str(file)!r}: write for example "
            f"{place} = {f'[{example}]' if many else example}"
        )
    if "choices" in parse and value not in parse["choices"]:
        names = [str(choice) for choice in parse["choices"]]
        raise ValueError(
            f"{place} must be one of {', '.join(names)}, got {value!r} in {str(file)!r}"
            f"{near(str(value), names)}: write for example {place} = {example}"
        )
    return tuple(map(convert, value)) if many else convert(value)


def _refuse_misplaced(name: str, known: Mapping[str, Collection[str]], got: str) -> None:
    """Raises ValueError for an option that belongs to another section."""
    for section, names in known.items():
        if name in names:
            line = f"below a line [{section}]" if section else "above all sections"
            raise ValueError(f"an option must stand in its section, got {got}: write it {line}")
