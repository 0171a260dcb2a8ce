# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments and extras. An error names the argument, its value and what to write."""

import datetime
import importlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def wrong(name: str, kind: str, value: object, remedy: str) -> TypeError:
    """Returns the error for an argument of another type.

    Args:
        name: Name of the argument.
        kind: The expected type, in words.
        value: The value received.
        remedy: Advice for the message.
    """
    return TypeError(
        f"{name} must be {kind}: got {name}={value!r:.200} of type {type(value).__name__}. {remedy}"
    )


def require_integer(name: str, value: object, remedy: str, *, least: int | None = None) -> None:
    """Raises TypeError for anything but an integer, ValueError for one below `least`.

    Args:
        name: Name of the argument.
        value: The value received.
        remedy: Advice for the message.
        least: The smallest valid integer; None for any.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise wrong(name, "an integer", value, _as_integer(name, value) or remedy)
    if least is not None and value < least:
        raise ValueError(f"{name} must be >= {least}: got {name}={value}. {remedy}")


def _as_integer(name: str, value: object) -> str:
    """Returns the advice for a text or a float that holds an integer, else nothing."""
    digits = isinstance(value, str) and value.strip().lstrip("-").isdecimal()
    if digits or (isinstance(value, float | np.floating) and float(value).is_integer()):
        return f"Pass {name}={int(value)}."  # pyright: ignore[reportArgumentType] -- a text or float
    return ""


def require_integers(name: str, values: Any) -> np.ndarray:
    """Returns numbers as i64[k]; TypeError unless they are integers in one dimension.

    Args:
        name: Name of the argument.
        values: A sequence or an array of integers.
    """
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | dict)
    try:
        numbers = np.asarray(values if isinstance(values, np.ndarray) or not is_list else [*values])
    except ValueError:  # lists of several lengths
        numbers = np.empty(1, object)
    if not is_list or numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise wrong(name, "a sequence of integers", values, "Pass numbers such as [0, 1].")
    return numbers.astype(np.int64, copy=False)


def require_datetime(now: object) -> datetime.datetime | None:
    """Returns `now`; TypeError for anything but a datetime or None."""
    if not isinstance(now, datetime.datetime | None):
        raise wrong("now", "a datetime", now, "Pass datetime.datetime(2026, 1, 1).")
    return now


def is_remote(path: object) -> bool:
    """Tests for a URL such as s3://bucket/corpus."""
    return isinstance(path, str) and _URL.match(path) is not None


def require_path(name: str, value: object) -> Path:
    """Returns a path; TypeError for anything but a string or a path.

    Args:
        name: Name of the argument.
        value: The value received.
    """
    if not isinstance(value, str | os.PathLike):
        raise wrong(name, "a path", value, f'Pass a string or a Path, such as {name}="corpus".')
    return Path(os.fsdecode(value))


def require_name(name: str, value: object, example: str) -> None:
    """Raises TypeError for anything but a string.

    Args:
        name: Name of the argument.
        value: The value received.
        example: A valid value.
    """
    if not isinstance(value, str):
        raise wrong(name, "a string", value, f"Pass one such as {name}={example!r}.")


def require_source(source: object) -> None:
    """Raises TypeError unless `source` is one. The usual mistake is to pass a path."""
    # Not by the protocol: on Python 3.11 that asks for the fingerprint, which hashes the input.
    methods = (getattr(source, name, None) for name in ("parts", "read", "locate"))
    if isinstance(source, type) or not all(map(callable, methods)):
        raise wrong(
            "source",
            "a source of records",
            source,
            "Pass text(...), jsonl(...), parquet(...) or another source.",
        )


def require_package(module: str, what: str, *, package: str | None = None, extra: str) -> Any:
    """Imports a module, or raises ImportError with the name of the extra.

    Args:
        module: Name of the module.
        what: What needs it, with the verb.
        package: Name of its package; None for that of the module.
        extra: The extra of this package that has it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} the package {package or module}, which is not installed: "
            f"pip install 'dovetail-data[{extra}]'"
        ) from error


def require_tokenizers() -> Any:
    """Imports `tokenizers`, or raises ImportError with the name of the extra."""
    return require_package("tokenizers", "a tokenizer.json needs", extra="tokenizers")


def require_jinja() -> Any:
    """Imports jinja2, or raises ImportError with the name of the extra."""
    jinja = require_package("jinja2", "a chat template needs", extra="chat")
    importlib.import_module("jinja2.meta")  # an attribute from then on
    return jinja
