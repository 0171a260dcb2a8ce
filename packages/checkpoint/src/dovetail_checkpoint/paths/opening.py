# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Opening of a path as a source of leaves."""

import functools
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from dovetail_checkpoint import _compat
from dovetail_checkpoint.layout.source import Source
from dovetail_checkpoint.layout.tensor_reader import TensorReader
from dovetail_checkpoint.paths.orbax_item import OrbaxItem
from dovetail_checkpoint.run.steps import committed_steps, missing, step_directory

_logger = logging.getLogger(__name__)
_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def open_source(path: str | Path, *, item: str | None = None) -> Source:
    """Opens the leaves at `path`: a step (ours or Orbax's), or safetensors files. Reads metadata.

    A step may be copied anywhere. If its directory is named as another step of a run, that is
    logged.

    Args:
        path: The path.
        item: Name of the tree in a step; None for an only tree, or if `path` is that of the tree.

    Raises:
        ValueError: There is no checkpoint at `path`.
    """
    path = Path(path).absolute()
    if is_safetensors(path):
        if item is not None:
            raise ValueError(
                f"safetensors files hold one tree, got item={item!r} for {path}; leave item out"
            )
        return TensorReader(path)
    steps = committed_steps(path)
    if steps:
        raise ValueError(
            f"path must be one step, got the run {path} with steps {steps}; "
            f"give {step_directory(path, steps[-1])}"
        )
    source = OrbaxItem(*step_and_item(path, item))
    if note := source.note:
        _logger.warning("%s: %s; it is read all the same", source.path, note)
    return source


def step_and_item(path: Path, item: str | None) -> tuple[Path, str | None]:
    """Returns the step and the tree: `RUN/10/model` is the tree `model` of `RUN/10`."""
    inside = _compat.is_checkpoint(path.parent) and not _compat.is_checkpoint(path)
    if item is None and inside and path.name in _compat.tree_names(path.parent):
        return path.parent, path.name
    return path, item


def is_safetensors(path: Path) -> bool:
    """True if `path` is a safetensors file, or a directory with some."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob("*.safetensors.index.json"))
    return path.name.endswith((".safetensors", ".safetensors.index.json"))


def of_paths_that_stay(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Returns a function that says so if its `path`, or its `a` or `b`, is deleted meanwhile.

    A run that still saves deletes old steps while others read them. Any error may follow: files
    that are missing, or seem damaged.

    Raises:
        RuntimeError: In place of the error that followed.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        given = signature.bind_partial(*args, **kwargs).arguments
        paths = [Path(given[name]).absolute() for name in ("path", "a", "b") if name in given]
        there = [path for path in paths if path.exists()]
        try:
            return function(*args, **kwargs)
        except Exception:
            gone = next((path for path in there if not path.exists()), None)
            if gone is None:
                raise
            # The error is about the files that are gone, of which there are hundreds.
            raise RuntimeError(
                f"a step must stay until it is read, got {gone}, deleted meanwhile{_beside(gone)}"
            ) from None

    return wrapped


def _beside(path: Path) -> str:
    """Returns the advice for a step, or a tree of a step, that is gone."""
    step = path if path.parent.is_dir() else path.parent
    return missing(step).removeprefix(", which does not exist")
