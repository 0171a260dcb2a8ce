# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A script or module under capture, unchanged: its arguments, path and exit code are its own.

JAX is imported when it imports JAX, and devices are first touched by its first computation. So it
can still set options of JAX and join a job of several processes.
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
        module: `name` is a module, as after `python -m`.
        start: Is called once, when JAX is about to trace the first function.
    """
    # Python looks for modules beside the file first, and in the current folder with -m.
    folder = os.getcwd() if module else os.path.dirname(os.path.realpath(name))
    with _invoked([name, *arguments], folder), at_first_trace(start):
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
    first = threading.Lock()  # stays locked by the first of several threads

    def listener(*_: Any, **__: Any) -> None:
        if first.acquire(blocking=False):
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
        first.acquire(blocking=False)  # a listener may be called once more
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
        """Returns the module's own spec, with a call of the function at its end."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec and (loader := spec.loader):
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._then()

            loader.exec_module = exec_module
        return spec


@contextlib.contextmanager
def _invoked(words: list[str], first: str) -> Iterator[None]:
    """Sets the arguments, and the first folder of modules, until the block ends."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = words
    sys.path.insert(0, first)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _code(code: object) -> int:
    """Returns the exit code of `sys.exit(code)`: a text is printed, and is a failure."""
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return FAILED


def _print(error: Exception) -> None:
    """Prints the traceback as from the script itself, without the frames around it."""
    trace, has_begun = error.__traceback__, False
    while trace:
        is_runner = trace.tb_frame.f_globals.get("__name__") == "runpy"
        if has_begun and not is_runner:
            break
        has_begun = has_begun or is_runner
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
