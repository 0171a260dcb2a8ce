# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The values within functions and objects: the only place of an optimizer's options."""

import functools
import types
from collections.abc import Mapping
from typing import Any

_UNSET = types.CellType()


def inside(thing: Any) -> list[tuple[str, Any]]:
    """Returns the named values that an object consists of; the name is "" where there is none.

    Those of a function are the variables of its closure.
    """
    if isinstance(thing, types.MethodType):
        return [("", thing.__self__)]
    if isinstance(thing, types.FunctionType):
        names = thing.__code__.co_freevars
        cells = zip(names, thing.__closure__ or (), strict=True)
        return [(name, cell.cell_contents) for name, cell in cells if cell != _UNSET]
    if isinstance(thing, functools.partial):
        return [("", thing.func), *thing.keywords.items(), *(("", x) for x in thing.args)]
    if isinstance(thing, Mapping):
        return [(str(key), value) for key, value in thing.items()]
    if isinstance(thing, tuple | list):
        return [("", value) for value in thing]
    if callable(wrapped := getattr(thing, "__wrapped__", None)):  # of jax.jit
        return [("", wrapped)]
    return list(vars(thing).items()) if hasattr(thing, "__dict__") else []
