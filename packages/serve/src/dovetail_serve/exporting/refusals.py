# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sentences for refusals of `jax.export`: custom calls, and a symbolic number of rows."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

_TARGET = re.compile(r"custom_call @([\w.$\-]+)")
_PATH = re.compile(r"""["']?(?:[A-Za-z]:)?[/\\][\w.\-/\\]+["']?|https?://\S+""")
# Longest reason that a manifest holds.
_LONGEST = 240


def is_callback(target: str) -> bool:
    """Whether a custom call runs a Python function of the process, as jaxlib names them.

    Examples: xla_ffi_python_cpu_callback, xla_ffi_partitioned_python_gpu_callback.
    """
    return "callback" in target.lower()


def check_targets(custom_calls: Sequence[str]) -> None:
    """Raises ValueError if a custom call to allow runs a Python function."""
    for target in custom_calls:
        if is_callback(target):
            raise ValueError(
                "custom_calls must not call back into Python, since a bundle holds no code, got "
                f"{target!r}; remove it from fn, or compute on the host with "
                "before=HostFunction(...)"
            )


def custom_call_refusal(error: Exception, allowed: Sequence[str]) -> ValueError | None:
    """Returns the error for custom calls that `jax.export` does not promise to keep.

    Args:
        error: The exception of `jax.export`.
        allowed: Targets allowed by the caller.

    Returns:
        The error to raise; None if the exception has another cause.

    Raises:
        ValueError: A custom call runs a Python function, and cannot be allowed.
    """
    targets = sorted(set(_TARGET.findall(str(error))))
    if not targets or "compatibility guarantees" not in str(error):
        return None
    check_targets(targets)
    names = (*allowed, *targets)
    return ValueError(
        "fn must make no custom calls but those that jax.export promises to keep, got "
        f"{', '.join(map(repr, targets))}; write custom_calls={names!r} to allow it, and the "
        "bundle loads with this version of jaxlib alone"
    )


def symbolic_refusal(error: Exception) -> str:
    """Returns one sentence on why a function did not trace with a symbolic number of rows.

    It names the innermost function that is not JAX's, and holds no paths of this machine.
    """
    text = " ".join(str(error).split())
    sentence = _PATH.sub("a file", re.split(r"(?<=[.!])\s", text, maxsplit=1)[0]).rstrip(".")
    sentence = sentence or type(error).__name__
    if "_DimExpr" in sentence:
        sentence = "an operation needs the number of rows as an integer"
    reason = f"{_function(error)} refuses a symbolic number of rows: {sentence}"
    return reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 3]}..."


def _function(error: Exception) -> str:
    """Returns the name of the innermost function of the traceback outside of JAX and NumPy."""
    jax_folder, package = Path(jax.__file__).parent, Path(__file__).parent
    name, traceback = "fn", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        folders = Path(code.co_filename).parents
        if not ({jax_folder, package} & set(folders) or _is_library(folders)):
            name = code.co_qualname
        traceback = traceback.tb_next
    return name


def _is_library(folders: Sequence[Path]) -> bool:
    """Whether a file is of the standard library or NumPy."""
    numpy = Path(sys.modules["numpy"].__file__ or "").parent
    return numpy in folders or Path(re.__file__).parent.parent in folders[:2]
