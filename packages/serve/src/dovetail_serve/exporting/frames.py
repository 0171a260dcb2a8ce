# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The line of a user's function at which an exception was raised."""

import linecache
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import jax

_PACKAGE = Path(__file__).parent.parent


def function_of(error: BaseException) -> str:
    """Returns the qualified name of the innermost function outside of JAX and NumPy."""
    name = "fn"
    for code, _ in _frames(error):
        name = code.co_qualname
    return name


def place_of(error: BaseException) -> str:
    """Returns file, line and text of the innermost line of the user's code; "fn" for none.

    It is a line outside of installed packages, if there is one.
    """
    lines = list(_frames(error))
    if not lines:
        return "fn"
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    own = [each for each in lines if not set(installed) & set(Path(each[0].co_filename).parents)]
    code, number = (own or lines)[-1]
    text = linecache.getline(code.co_filename, number).strip()
    return f"{code.co_filename}:{number}" + (f" ({text})" if text else "")


def _frames(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    """Yields functions and lines of a traceback that are of neither JAX, NumPy nor this package."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not _is_library(Path(code.co_filename)):
            yield code, traceback.tb_lineno
        traceback = traceback.tb_next


def _is_library(file: Path) -> bool:
    """Whether a file is of JAX, NumPy, this package or the standard library."""
    numpy = Path(sys.modules["numpy"].__file__ or "").parent
    folders = file.parents
    return bool({Path(jax.__file__).parent, numpy, _PACKAGE} & set(folders)) or (
        Path(re.__file__).parent.parent in folders[:2]
    )
