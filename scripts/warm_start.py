# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a test's Python program in a fork of a process that has already imported JAX and Flax.

These imports are most of a small program. The first `run` starts a server: this file, as a program.
It imports, computes nothing, and forks for each request. Requests and answers are lines of JSON.
This is sound for two reasons, established on jax 0.10.2 and 0.12:

- A fork has one thread. NumPy's BLAS ends its threads before a fork; JAX starts none at import.
- XLA reads XLA_FLAGS at its first use, so the number of devices is the program's own.

Python, NumPy and JAX read other variables at their start. Each set of them, except `_LATE`, gets
its own server, and so does each directory and each -W. Servers and programs end with the thread
that started the server, however it ends. Two differences from a process remain: a traceback begins
with frames of this file, and the programs of a server share its hash seed. A test of a start, an
import, a signal or memory uses `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# JAX reads these at import. The fork applies them to jax.config.
_JAX = (
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_ENABLE_X64",
    "JAX_NUMPY_DTYPE_PROMOTION",
    "JAX_NUMPY_RANK_PROMOTION",
)
_LATE = (*_JAX, "PYTEST_CURRENT_TEST", "XLA_FLAGS")  # need no server of their own
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run(
    arguments: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`, but sooner.

    Args:
        arguments: A file, or -c and a program; then its arguments. -W and a filter may precede.
        env: All variables of the program; those of this process by default.

    Returns:
        Status, output and errors. The status is negative if a signal ended the program.

    Raises:
        RuntimeError: The server ended, for example because JAX cannot be imported.
    """
    line = [os.fspath(argument) for argument in arguments]
    command = [sys.executable, *line]
    variables = dict(os.environ if env is None else env)
    if sys.platform != "linux":
        return subprocess.run(
            command, env=variables, input="", capture_output=True, text=True, check=False
        )
    late = {name: variables.pop(name) for name in _LATE if name in variables}
    options = line[:2] if line[0] == "-W" else []
    key = (os.getcwd(), *options, *sorted(variables.items()))
    if key not in _servers:
        _servers[key] = _Server(options, variables)
    with tempfile.TemporaryDirectory() as folder:
        request = {"program": line[len(options) :], "env": late, "folder": folder}
        try:
            status = _servers[key].run(request)
        except BaseException:  # an interrupt, too: the next answer would be that of this program
            _servers.pop(key).close()
            raise
        texts = [Path(folder, name).read_text(encoding="utf-8") for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(command, status, *texts)


def cpu_s() -> float:
    """CPU seconds of the servers and their programs, which os.times() does not count yet."""
    return sum(server.cpu_s for server in _servers.values())


class _Server:
    """A process that runs `_serve`, in its own session: a terminal's interrupt is for pytest."""

    def __init__(self, options: list[str], variables: dict[str, str]) -> None:
        self.cpu_s = 0.0
        command, pipe = [sys.executable, *options, __file__], subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=variables, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        atexit.register(self.close)

    def run(self, request: dict[str, Any]) -> int:
        """Runs a program and returns its status."""
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(
                "the server of warm starts must live as long as this process, but ended with "
                f"status={self.process.wait()}; start this program with subprocess, or mend its end"
            )
        status, self.cpu_s = json.loads(answer)
        return status

    def close(self) -> None:
        """Ends the server and the program that it runs."""
        with contextlib.suppress(BrokenPipeError), self.process:
            self.process.kill()


_servers: dict[tuple[object, ...], _Server] = {}


def _serve() -> dict[str, Any]:
    """Forks for each request. Returns only in a fork, with its request."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            return json.loads(line)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([status, sum(os.times()[:4])]), flush=True)
    os._exit(0)


def _execute(request: dict[str, Any]) -> None:
    """Runs a program as `__main__`. Its exceptions are for the interpreter to handle."""
    streams = [Path(os.devnull), *(Path(request["folder"], name) for name in ("stdout", "stderr"))]
    for number, path in enumerate(streams):
        with path.open("wb" if number else "rb") as file:
            os.dup2(file.fileno(), number)
    os.environ.update(request["env"])
    for name in _JAX:
        if (value := request["env"].get(name)) is not None:
            switch = isinstance(getattr(jax.config, name.lower()), bool)
            true = value.lower() in ("1", "true", "t", "yes", "y", "on")
            jax.config.update(name.lower(), true if switch else value)
    target, *arguments = request["program"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if target == "-c":
        source, name, sys.path[0] = arguments.pop(0), "<string>", ""
    else:
        source, name = Path(target).read_bytes(), os.path.abspath(target)
        sys.path[0], main.__file__ = os.path.dirname(os.path.realpath(target)), name
    sys.argv[:] = [target, *arguments]
    exec(compile(source, name, "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":
    import jax

    with contextlib.suppress(ImportError):  # not every package's tests have it
        import flax.nnx  # noqa: F401
    gc.freeze()  # a collection in a fork does not visit, and so copy, these objects
    _execute(_serve())
