# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Renamed public names: a warning until a version of the package, an error from then on.

    _RENAMED = {"Keep": Renamed("Retention", ends="0.3")}
    __getattr__ = renamed_names(__name__, _RENAMED, version=__version__)

This file is kept verbatim in several packages, since no package imports another. Edit it in
scripts/shared, then run scripts/copies.py.
"""

import dataclasses
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Renamed:
    """The new name of a public name.

    Args:
        name: The name to write instead, in the same module.
        ends: The first version of the package that refuses the old name, such as "0.3".
    """

    name: str
    ends: str


def renamed_names(
    module: str, table: Mapping[str, Renamed], *, version: str
) -> Callable[[str], Any]:
    """Returns a module's `__getattr__` for its renamed names.

    Args:
        module: Name of the module, `__name__`.
        table: The renamed names.
        version: Version of the package.

    Returns:
        A function of a name. A renamed one is the new object, with a DeprecationWarning at the
        caller's line. Its AttributeError names the new one from the version `ends` on.
    """

    def __getattr__(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = table[name]
        advice = f"write {module}.{new.name} instead"
        if _numbers(version) >= _numbers(new.ends):
            raise AttributeError(
                f"{module}.{name} was renamed; got version {version}, it ended with {new.ends}; "
                f"{advice}"
            )
        warnings.warn(
            f"{module}.{name} was renamed and ends with version {new.ends}; {advice}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(sys.modules[module], new.name)

    return __getattr__


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
