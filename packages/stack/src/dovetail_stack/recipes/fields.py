# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fields of settings: their declaration, their help, and checks of their values."""

import dataclasses
import math
import os
import re
from dataclasses import field
from typing import Any

_URL = re.compile(r"([a-z][a-z0-9+]+):/+")
_COPIES = {
    "gs": "gcloud storage cp -r URL .",
    "s3": "aws s3 sync URL .",
    "hf": "hf download org/name",
}


def absolute(path: str) -> str:
    """Returns the absolute path, so a run resumes from any folder. An address stays as it is."""
    return path if _URL.match(path) else os.path.realpath(path)


def check_local(name: str, path: str | os.PathLike[str]) -> None:
    """Raises ValueError if a path is an address, such as gs://bucket/text.

    Args:
        name: Name of the argument.
        path: The path, as a string or a `Path`, which merges slashes.
    """
    if scheme := _URL.match(os.fspath(path)):
        url = _URL.sub(r"\1://", os.fspath(path), count=1)
        copy = _COPIES.get(scheme[1], "curl -O URL").replace("URL", url)
        advice = f"copy it here ({copy}), and pass the path of the copy"
        if name == "out":
            advice = "name a directory here, and copy it afterwards"
        raise ValueError(f"{name} must be a path of this machine, got {name}={url}: {advice}")


def declared(default: Any, help: str, **parse: Any) -> Any:
    """Declares a field.

    Args:
        default: Its default.
        help: Its help, with the unit.
        **parse: Arguments of argparse that do not follow from its type; see
            `dovetail_runs.add_options`.
    """
    return field(default=default, metadata={"help": help, **parse})


def switch(help: str) -> Any:
    """Declares an option without a value: True if it is typed."""
    return declared(False, help, action="store_true")


def needed(help: str, **parse: Any) -> Any:
    """Declares a required directory, or other paths if `parse` says so."""
    return field(metadata={"help": help, "type": absolute, **parse})


def help_of(item: Any, *, in_words: bool = True) -> str:
    """Returns the help of a field, with its default if it has one.

    Args:
        item: The field.
        in_words: Replace a default by its meaning: "; 0: no average" becomes " (no average)".
    """
    help, default = item.metadata["help"], item.default
    if default is dataclasses.MISSING:
        return f"{help} (needed for a new run)"
    none = default is None or default is False or default == ()
    shown = "none" if none else f"{default:g}" if isinstance(default, float) else str(default)
    text, named, meaning = help.partition(f"; {shown}: ")
    if named:
        return f"{text} ({meaning})" if in_words else help
    return help if none else f"{help} ({shown})"


def at_least(values: Any, least: int, *names: str) -> None:
    """Raises ValueError if one of these fields is below `least`.

    Args:
        values: Settings.
        least: The smallest value.
        *names: Names of the fields.
    """
    for name in names:
        value = getattr(values, name)
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {name}={value}: leave it out")


def above_zero(values: Any, *names: str) -> None:
    """Raises ValueError unless these fields are above 0 and finite."""
    for name in names:
        value = getattr(values, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, got {name}={value}: leave it out")


def check_share(held_out: float) -> None:
    """Raises ValueError unless a held-out share lies between 0 and 1."""
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must lie between 0 and 1, got held_out={held_out}: try 0.05")
