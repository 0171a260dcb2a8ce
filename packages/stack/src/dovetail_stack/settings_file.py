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
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail_runs import options_text, read_options
from dovetail_runs.settings_file import near, option_values, read_toml
from dovetail_stack import settings
from dovetail_stack.recipes.options import Devices, declared
from dovetail_stack.settings import ALIASES, RECIPES, Settings


@functools.cache
def form(kind: type[Settings]) -> type:
    """Returns the class of the files of a recipe: its groups, its name and the axes."""
    line = f"Settings of dovetail train {kind.recipe} --settings FILE; typed options replace them"
    groups = {**settings.parts(kind), "devices": Devices}
    recipe = ("recipe", str, declared(kind.recipe, line))
    return dataclasses.make_dataclass("Options", [recipe, *groups.items()], kw_only=True)


def recipe_of(file: Path) -> str | None:
    """Returns the recipe that the file names, or None. Raises ValueError for an unknown one."""
    named = read_toml(file).get("recipe")
    recipe = next((own for own, aliases in ALIASES.items() if named in aliases), named)
    if recipe is not None and recipe not in RECIPES:
        raise ValueError(
            f"a recipe must be one of {', '.join(RECIPES)}, got recipe = {recipe!r} in "
            f"{str(file)!r}{near(str(recipe), RECIPES)}: correct the file"
        )
    return recipe


def read(file: Path, kind: type[Settings]) -> dict[str, Any]:
    """Returns the options in a file, by flat name and in the types of the settings of `kind`.

    Raises ValueError as `dovetail_runs.read_options`, and if the file belongs to another recipe.
    """
    named = recipe_of(file)
    if named not in (None, kind.recipe):
        raise ValueError(
            f"the settings must belong to the recipe {kind.recipe}, got recipe = {named!r} in "
            f"{str(file)!r}: type dovetail train {named}, or pass another file"
        )
    given = read_options(file, form(kind))
    given.pop("recipe", None)
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


def values_of(kind: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recipe and {section: {key: value}} with defaults for options not given.

    A required option that is not given is None. Raises ValueError for values that do not fit.
    """
    fields = settings.fields_of(kind).items()
    needed = {name: "" for name, item in fields if item.default is dataclasses.MISSING}
    settings.create(kind, {**needed, **given})
    return option_values(form(kind), given)


def written(kind: type[Settings], given: Mapping[str, Any]) -> str:
    """Returns a complete file with the given values. Raises ValueError if they do not fit."""
    values_of(kind, given)
    return options_text(form(kind), given)
