# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a test's Python program in a fork of a process that has imported JAX and Flax already.

Their import costs 0.8 to 1.3 CPU seconds, most of a small program. `run` starts a server on first
use (warm_server.py), which imports them, computes nothing and forks for each program. It ends with
this process, however that ends, and ends a running program too.

The program has its own directory, environment, sys.argv, sys.path, `__main__`, warning filters and
standard streams. It leaves through the interpreter's own exit: status, traceback, threads,
`atexit`. Established on jax 0.10.2 and 0.12:

- XLA reads XLA_FLAGS at its first use, so the number of devices and the optimization level are the
  program's own. A fork has one thread: NumPy's BLAS ends its threads before a fork. JAX has none,
  and warns of forks only from its first backend on.
- JAX reads JAX_* at import. The fork applies those of `_LATE` to JAX's configuration.
- Other variables that Python, NumPy, JAX or Flax read at their start (`_EARLY`) get a server of
  their own for each set of values.
- PYTHONWARNINGS, -W and PYTHONPATH act from the first line of the program on, not on the imports
  of the server: these warn unseen, and come from the environment's own packages. NumPy's global
  generator is seeded anew.

A test stays with `subprocess` if its subject is a start, an import, a signal, memory, or an absent
module. Output goes to files: `run` waits for the program, not for children that it leaves behind.
One program runs at a time. Without Linux, or with DOVETAIL_WARM_START=0, each is a real process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("warm_server.py")
SWITCH = "DOVETAIL_WARM_START"
_EARLY = ("JAX_", "FLAX_", "PYTHON", "OPENBLAS_", "OMP_", "MKL_", "NPY_", "LD_", "LC_", "LANG")


def _switch(text: str) -> bool:
    return text.lower() in ("1", "true", "t", "yes", "y", "on")


_LATE: dict[str, Callable[[str], object]] = {
    "JAX_COMPILATION_CACHE_DIR": str,
    "JAX_DEFAULT_PRNG_IMPL": str,
    "JAX_ENABLE_COMPILATION_CACHE": _switch,
    "JAX_ENABLE_X64": _switch,
    "JAX_NUMPY_DTYPE_PROMOTION": str,
    "JAX_NUMPY_RANK_PROMOTION": str,
    "JAX_PLATFORMS": str,
}
_OWN = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONWARNINGS")  # set anew after the fork


def run(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    input: str = "",
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`, but sooner.

    Args:
        arguments: Pairs of -W and a filter, then a file, -c and a program or -m and a module,
            then the arguments of the program.
        env: All variables of the program; those of this process by default.
        cwd: Its directory; that of this process by default.
        timeout: Seconds until the program is killed.
        input: Its standard input.
        check: Raise if the program fails, and print its errors.

    Returns:
        Status, output and errors. The status is negative if a signal ended the program.

    Raises:
        subprocess.CalledProcessError: The program failed and `check` is set.
        subprocess.TimeoutExpired: It took longer than `timeout`.
        ValueError: An option of Python other than -W, -c and -m.
    """
    line = [os.fspath(argument) for argument in arguments]
    request = _request(line)  # refuses a line that only a real process can run
    command = [sys.executable, *line]
    variables = dict(os.environ if env is None else env)
    if sys.platform != "linux" or os.environ.get(SWITCH) == "0":
        own = {"env": variables, "cwd": cwd, "timeout": timeout, "input": input}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **own)
    else:
        request |= {"env": variables, "cwd": os.fspath(cwd or Path.cwd())}
        done = _run_in_fork(command, request, input, timeout)
    if check and done.returncode:
        print(done.stderr, file=sys.stderr)
        done.check_returncode()
    return done


def cpu_s() -> float:
    """CPU seconds of the servers and their programs, which os.times() does not count yet."""
    return sum(server.cpu_s for server in _servers.values())


def _request(line: list[str]) -> dict[str, Any]:
    """The parts of a command line."""
    rest, filters = list(line), []
    while rest[0] == "-W":
        filters.append(rest[1])
        del rest[:2]
    kind = rest.pop(0) if rest[0] in ("-c", "-m") else "file"
    if rest[0].startswith("-"):
        raise ValueError(
            f"a warm start takes -W FILTER, then FILE, -c PROGRAM or -m MODULE, got {line}; "
            "use subprocess.run for other options of Python"
        )
    target, *arguments = rest
    return {"filters": filters, "kind": kind, "target": target, "arguments": arguments}


def _run_in_fork(
    command: list[str], request: dict[str, Any], given: str, timeout: float | None
) -> subprocess.CompletedProcess[str]:
    variables = request["env"]
    late = {k: parse(variables[k]) for k, parse in _LATE.items() if variables.get(k)}
    request["jax"] = {name.lower(): value for name, value in late.items()}
    others = {k: v for k, v in variables.items() if k not in _LATE and k not in _OWN}
    key = tuple(sorted((k, v) for k, v in others.items() if k.startswith(_EARLY)))
    with contextlib.ExitStack() as stack:
        files: list[IO[str]] = [
            stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(4)
        ]
        for file, text in zip(files, (json.dumps(request), given), strict=False):
            file.write(text)
            file.seek(0)
        if key not in _servers:
            _servers[key] = _Server(others)
        try:
            status = _servers[key].run(files, timeout)
        except BaseException:  # an interrupt, too: the next answer would be that of this program
            _servers.pop(key).close()
            raise
        for file in files[2:]:
            file.seek(0)
        output, errors = files[2].read(), files[3].read()
    if status is None:
        assert timeout is not None
        raise subprocess.TimeoutExpired(command, timeout, output, errors)
    return subprocess.CompletedProcess(command, status, output, errors)


class _Server:
    """A process of warm_server.py, and this end of the socket to it.

    Args:
        variables: Its environment.
    """

    def __init__(self, variables: dict[str, str]) -> None:
        self.cpu_s = 0.0
        atexit.register(self.close)
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, str(SERVER), str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command, env=variables, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def run(self, files: list[IO[str]], timeout: float | None) -> int | None:
        """The status of a program, None if it was killed after `timeout`.

        Args:
            files: The request, and the program's standard input, output and errors.
            timeout: Seconds.
        """
        socket.send_fds(self.channel, [b"run"], [file.fileno() for file in files])
        (pid,) = self._answer()
        self.channel.settimeout(timeout)
        try:
            status, self.cpu_s = self._answer()
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self.channel.settimeout(None)
            _, self.cpu_s = self._answer()
            return None
        self.channel.settimeout(None)
        return status

    def _answer(self) -> list[Any]:
        answer = self.channel.recv(1000)
        if not answer:
            raise RuntimeError(
                f"the server of warm starts must live as long as this process, but ended with "
                f"status {self.process.wait()}; {SWITCH}=0 does without it"
            )
        return json.loads(answer)

    def close(self) -> None:
        """Ends the server, and the program that it runs."""
        atexit.unregister(self.close)
        self.channel.close()
        self.process.wait()


_servers: dict[tuple[tuple[str, str], ...], _Server] = {}
