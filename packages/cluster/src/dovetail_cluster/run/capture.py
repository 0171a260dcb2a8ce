# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pickles a user's function, or names the captured variable that stands in the way."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any


def dump(function: Any, args: tuple[Any, ...]) -> bytes:
    """Pickles a function with its arguments.

    Args:
        function: The function. One of a script or a notebook is pickled by value.
        args: Its arguments.

    Raises:
        TypeError: Something cannot be pickled; the message names it.
    """
    import cloudpickle

    if not callable(function):
        raise TypeError(
            f"a function must be given, got {type(function).__name__}; write run(train) without "
            f"calling train"
        )
    try:
        return cloudpickle.dumps((function, args))
    except Exception as error:  # any class may fail in any way in its own methods
        names = [*blockers(function)]
        names += [f"argument {i} ({type(a).__name__})" for i, a in enumerate(args) if not _fits(a)]
        what = " and ".join(names) or "something that it refers to"
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"a function must be picklable to reach the hosts, got {name} with {what}: {error}; "
            f"make it inside the function instead"
        ) from error


def blockers(function: Any, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """Yields the captured variables that cannot be pickled, with the functions on the way."""
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen |= {id(function)}
    for name, value in _captured(function):
        if _fits(value):
            continue
        deeper = [*blockers(value, seen)]
        if deeper:
            yield from (f"{name} → {text}" for text in deeper)
        elif not isinstance(value, types.FunctionType):
            yield f"the variable {name} ({type(value).__name__})"


def _captured(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _fits(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:  # as in `dump`
        return False
    return True
