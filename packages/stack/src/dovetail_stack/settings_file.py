# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`--settings FILE.toml`: options of `dovetail train` in a file, by the groups of its help.

    recipe = "pretrain"

    [shape]
    family = "mixtral"
    depth = 8

A key is the name of an option with underscores, and a path is relative to the working directory, as
on the command line. An option of the command line replaces the file's. The options of one launch
are typed: --out, --resume, --rewind, --leave-out, --estimate and those of several processes.
"""

import dataclasses
import textwrap
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dovetail_runs.settings import arguments
from dovetail_stack import settings
from dovetail_stack._command import similar
from dovetail_stack.recipes.options import Devices, help_of
from dovetail_stack.settings import RECIPES, Settings

_WIDTH = 88  # of a comment
_KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_EXAMPLES = {int: "8", float: "0.5", str: '"..."', bool: "true"}


def sections(kind: type[Settings]) -> dict[str, Any]:
    """Returns {section: class} of the file of a recipe."""
    return {**settings.parts(kind), "devices": Devices}


def recipe_of(file: Path) -> str | None:
    """Returns the recipe that the file names, or None. Raises ValueError for an unknown one."""
    recipe = _recipe(_content(file).get("recipe"))
    if recipe is not None and recipe not in RECIPES:
        raise ValueError(
            f"a recipe must be one of {', '.join(RECIPES)}, got recipe = {recipe!r} in "
            f"{str(file)!r}{_near(str(recipe), RECIPES)}: correct the file"
        )
    return recipe


def read(file: Path, kind: type[Settings]) -> dict[str, Any]:
    """Returns the options in a file, by flat name and in the types of the settings of `kind`.

    Raises ValueError if the file is missing or not TOML, belongs to another recipe, or has an
    unknown section or key or a value of a wrong type.
    """
    content = _content(file)
    named = _recipe(content.pop("recipe", kind.recipe))
    if named != kind.recipe:
        raise ValueError(
            f"the settings must belong to the recipe {kind.recipe}, got recipe = {named!r} in "
            f"{str(file)!r}: type dovetail train {named}, or pass another file"
        )
    known = {
        section: {item.name: item for item in dataclasses.fields(group)}
        for section, group in sections(kind).items()
    }
    given: dict[str, Any] = {}
    for section, values in content.items():
        if section not in known:
            _refuse_misplaced(section, known, f"{section} at the top of {str(file)!r}")
            raise ValueError(
                f"a section must be one of {', '.join(f'[{name}]' for name in known)}, got "
                f"[{section}] in {str(file)!r}{_near(section, known)}: correct it or remove it"
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
                    f"{str(file)!r}{_near(name, fields)}: write one of {', '.join(fields)}"
                )
            given[name] = _value(fields[name], value, place=f"{section}.{name}", file=file)
    if "steps" in given and "minutes" in given:
        raise ValueError(
            f"a run must have steps or minutes, got both in section [duration] of {str(file)!r}: "
            "remove one of them"
        )
    return given


def merged(file: Path, kind: type[Settings], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of the file and the typed ones, which replace those of the file.

    Args:
        file: The TOML file.
        kind: Recipe of the run.
        typed: Options of the command line, by flat name.
    """
    given = read(file, kind)
    if "steps" in typed or "minutes" in typed:
        given = {k: v for k, v in given.items() if k not in ("steps", "minutes")}
    return {**given, **typed}


def values_of(kind: type[Settings], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns {section: {key: value}} with defaults for options that are not given.

    A required option that is not given is None. Raises ValueError for values that do not fit.
    """
    fields = settings.fields_of(kind)
    needed = {n: "" for n, item in fields.items() if item.default is dataclasses.MISSING}
    settings.create(kind, {**needed, **given})
    defaults = {n: item.default if n not in needed else None for n, item in fields.items()}
    values = {**dataclasses.asdict(Devices()), **defaults, **given}
    return {
        section: {item.name: values[item.name] for item in dataclasses.fields(group)}
        for section, group in sections(kind).items()
    }


def written(kind: type[Settings], given: Mapping[str, Any]) -> str:
    """Returns a complete file with the given values: each option with its help and default.

    Options of no value are comments. Raises ValueError for values that do not fit.
    """
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(f"Settings of dovetail train {kind.recipe} --settings FILE."))
    document.add(tomlkit.comment("Options of the command line replace them."))
    document.add("recipe", tomlkit.item(kind.recipe))
    values = values_of(kind, given)
    for section, group in sections(kind).items():
        table = tomlkit.table()
        for item in dataclasses.fields(group):
            for line in textwrap.wrap(help_of(item, in_words=False), _WIDTH):
                table.add(tomlkit.comment(line))
            value = values[section][item.name]
            if value is None:
                table.add(tomlkit.comment(f"{item.name} = ..."))
            else:
                table.add(item.name, list(value) if isinstance(value, tuple) else value)
        document.add(tomlkit.nl())
        document.add(section, table)
    return tomlkit.dumps(document)


def _value(item: Any, value: Any, *, place: str, file: Path) -> Any:
    """Returns a value of the file in the type of the settings, or raises ValueError."""
    parse = arguments(item, item.type)
    convert = parse.get("type", bool if isinstance(item.default, bool) else str)
    wanted = convert if convert in _KINDS else str  # a path's type is a function
    many = "nargs" in parse or parse.get("action") == "append"
    values = value if many and isinstance(value, list) else [value]
    accepted = (int, float) if wanted is float else wanted
    right = all(isinstance(v, accepted) and isinstance(v, bool) == (wanted is bool) for v in values)
    example = _EXAMPLES[wanted] if "choices" not in parse else f'"{parse["choices"][0]}"'
    if not right or (many and not isinstance(value, list)):
        kind = f"a list, each item {_KINDS[wanted]}" if many else _KINDS[wanted]
        raise ValueError(
            f"{place} must be {kind}, got {value!r} in {str(file)!r}: write for example "
            f"{place} = {f'[{example}]' if many else example}"
        )
    if "choices" in parse and value not in parse["choices"]:
        near = _near(str(value), parse["choices"])
        raise ValueError(
            f"{place} must be one of {', '.join(parse['choices'])}, got {value!r} in "
            f"{str(file)!r}{near}: write for example {place} = {example}"
        )
    return tuple(map(convert, value)) if many else convert(value)


def _refuse_misplaced(name: str, known: Mapping[str, Collection[str]], got: str) -> None:
    """Raises ValueError for an option that belongs to another section."""
    for section, names in known.items():
        if name in names:
            raise ValueError(
                f"an option must stand in its section, got {got}: write it below a line [{section}]"
            )


def _near(name: str, known: Collection[str]) -> str:
    near = similar(name, list(known))
    return f" (did you mean {near}?)" if near else ""


def _recipe(named: Any) -> Any:
    """Returns the recipe of an alias, such as sft. Other values are returned as they are."""
    return next((own for own, aliases in settings.ALIASES.items() if named in aliases), named)


def _content(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"the settings must be a file that can be read, got {str(file)!r} ({error.strerror}): "
            "write one with dovetail train RECIPE --print-settings"
        ) from error
    except ValueError as error:  # of TOML, with line and column, or of UTF-8
        raise ValueError(
            f"the settings must be TOML, got {str(file)!r} ({error}): correct it, or write one "
            "with dovetail train RECIPE --print-settings"
        ) from error
