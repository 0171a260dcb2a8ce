# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of one command: process 0 works on the files of the run, the others wait for it."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from dovetail_stack._command import exit_code_of

T = TypeVar("T")


@contextlib.contextmanager
def joined(options: Mapping[str, Any]) -> Iterator[None]:
    """Joins the other processes for the block, if the command says so, and watches them.

    Enter it before any use of devices. Raises ValueError for options that contradict each other.
    """
    given = {name: options[name] for name in ("processes", "process") if name in options}
    coordinator = options.get("coordinator")
    if coordinator is None and not given:
        yield
        return
    if "estimate" in options:
        raise ValueError(
            f"an estimate needs one process, got coordinator={coordinator}: leave out --coordinator"
        )
    if coordinator == "auto" and given:
        shown = ", ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(
            f"with coordinator=auto JAX detects the processes, got {shown}: leave these out, or "
            f"pass --coordinator HOST:PORT"
        )
    from dovetail_train import initialize_distributed, watch_processes

    _keep_stdout()
    initialize_distributed(None if coordinator == "auto" else coordinator, **given)
    with watch_processes():
        yield


def _keep_stdout() -> None:
    """Sends the lines of C libraries to standard error: Gloo prints its connections."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)


def is_first() -> bool:
    """Tests whether this process writes and prints: process 0, or the only one."""
    import jax

    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints a line of progress to standard error, on process 0."""
    if is_first():
        print(text, file=sys.stderr, flush=True)


def on_first(work: Callable[[], Any]) -> Any:
    """Calls `dovetail_train.on_first`. If `work` fails, all processes end with its exit code."""
    from dovetail_train import on_first

    def coded() -> Any:
        try:
            return work()
        except Exception as error:
            error.exit_code = exit_code_of(error)  # pyright: ignore[reportAttributeAccessIssue]
            raise

    return on_first(coded)


def shared(write: Callable[[], T], read: Callable[[], T]) -> T:
    """Returns the result of `write` on process 0, and then of `read` on the others."""
    written: list[T] = []
    on_first(lambda: written.append(write()))
    return written[0] if written else read()
