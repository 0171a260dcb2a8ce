# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of one command: process 0 works on the files of the run, the others wait for it.

All processes share the directory of the run. A failure of process 0 ends the others with its
message.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dovetail_stack._command import exit_code_of

T = TypeVar("T")
# Between two messages of process 0 that it still works: each is a collective, which has a limit.
ROUND_S = 5.0


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
    """Runs `work` on process 0, while the others wait, and returns its result on all of them.

    Args:
        work: Returns a JSON value. With several processes it runs in a thread.

    Raises:
        Exception: The error of `work`, on process 0.
        RuntimeError: The same message, on the others.
    """
    import jax

    if jax.process_count() == 1:
        return work()
    from dovetail_train.mesh.processes import first

    if not is_first():
        while (outcome := first(None)) is None:
            pass
        if "error" in outcome:
            raise _FailedError(f"process 0 failed: {outcome['error']}", outcome["exit_code"])
        return outcome["result"]
    result, failures = [], []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="dovetail-first", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(timeout=ROUND_S)
        if thread.is_alive():
            first(None)
    if failures:
        notes = "\n".join([str(failures[0]), *getattr(failures[0], "__notes__", ())])
        first({"error": notes, "exit_code": exit_code_of(failures[0])})
        raise failures[0]
    return first({"result": result[0]})["result"]


def shared(write: Callable[[], T], read: Callable[[], T]) -> T:
    """Returns the result of `write` on process 0, and then of `read` on the others."""
    written: list[T] = []
    on_first(lambda: written.append(write()))
    return written[0] if written else read()


class _FailedError(RuntimeError):
    """The failure of process 0, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check_shared(file: Path) -> None:
    """Raises RuntimeError on every process unless all of them see the same `file`."""
    from dovetail_train.mesh.processes import gather

    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        text = None
    every = gather(text)
    blind = [i for i, other in enumerate(every) if other != every[0]]
    if blind:
        raise RuntimeError(
            f"all processes must share the directory of the run, got {str(file.parent)!r} without "
            f"the {file.name} of process 0 in processes {blind}: pass --out a directory of a file "
            f"system that all of them mount"
        )


def gathered(model: Any) -> Any:
    """Returns the model with whole arrays on the first device of this process. A collective."""
    import jax
    from flax import nnx
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return model
    graph, state = nnx.split(model)
    device = jax.local_devices()[0]

    def leaf(x: Any) -> Any:
        whole = multihost_utils.process_allgather(x, tiled=True)
        return jax.device_put(whole, device) if is_first() else None

    whole = jax.tree.map(leaf, state)
    return nnx.merge(graph, whole) if is_first() else None
