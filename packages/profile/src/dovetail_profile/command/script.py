# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A script or module under capture, unchanged.

It sees its own arguments, path and exit code. JAX is not imported before it imports JAX, and no
device is touched before its first computation: options of JAX that it sets, and a job of several
processes that it joins, work as without the capture.
"""

import contextlib
import importlib.util
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dovetail_profile._command import FAILED, INTERRUPTED

Start = Callable[[], None]


def run_script(name: str, arguments: Sequence[str], *, module: bool, start: Start) -> int:
    """Runs a script as `python NAME ARGUMENTS` does. Returns its exit code.

    Args:
        name: Path of a file, or of a folder with `__main__.py`; or name of a module.
        arguments: Its arguments.
        module: Whether `name` is a module, as after `python -m`.
        start: Is called once, when JAX is about to trace the first function.
    """
    first = os.getcwd() if module else os.path.dirname(os.path.realpath(name))
    with _argv([name, *arguments]), _path(first), at_first_trace(start):
        try:
            if module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
        except SystemExit as end:
            return _code(end.code)
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted\n")
            return INTERRUPTED
        except Exception as error:
            _print(error)
            return FAILED
    return 0


@contextlib.contextmanager
def at_first_trace(start: Start) -> Iterator[None]:
    """Calls a function once, when JAX is about to trace within the block."""
    lock, done = threading.Lock(), []

    def listener(*_: Any, **__: Any) -> None:
        with lock:
            is_first = not done
            done.append(True)
        if is_first:
            start()

    def listen() -> None:
        from jax import monitoring

        monitoring.register_scalar_listener(listener)  # the begin of each stage

    finder = _AfterImport("jax", listen)
    if "jax" in sys.modules:
        listen()
    else:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        done.append(True)
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        else:
            from jax import monitoring

            with contextlib.suppress(AssertionError):  # the script has cleared all
                monitoring.unregister_scalar_listener(listener)


class _AfterImport(MetaPathFinder):
    """Calls a function once after a module was imported."""

    def __init__(self, name: str, then: Start) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module's own spec, which calls the function at its end."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._then()

            loader.exec_module = exec_module
        return spec


@contextlib.contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _path(first: str) -> Iterator[None]:
    """`python FILE` looks for modules beside the file first, `python -m` in the current folder."""
    before = list(sys.path)
    sys.path.insert(0, first)
    try:
        yield
    finally:
        sys.path[:] = before


def _code(code: object) -> int:
    """Returns the exit code of `sys.exit(code)`: a text is printed, and is a failure."""
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return FAILED


def _print(error: Exception) -> None:
    """Prints the traceback as from the script itself, without the frames that ran it."""
    trace, has_begun = error.__traceback__, False
    while trace:
        is_runner = trace.tb_frame.f_globals.get("__name__") == "runpy"
        if has_begun and not is_runner:
            break
        has_begun = has_begun or is_runner
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
