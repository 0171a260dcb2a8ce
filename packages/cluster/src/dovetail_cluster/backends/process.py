# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon on this machine that does not outlive the process that has started it.

A daemon ends when it loses its controller. A host that is taken away from Ray, or whose script is
killed, leaves the controller alive, so the daemon must die with its parent. Linux ties that to the
thread that forks; each daemon therefore has a thread, which starts it and waits for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

# Asks Linux (PR_SET_PDEATHSIG of <sys/prctl.h>) for SIGKILL at the end of the thread that has
# started the process, then becomes the command. A `preexec_fn` would fork a process that may have
# imported JAX, which warns of that.
_DIE_WITH_THREAD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):  # else it has died in between
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Process:
    """Runs a line of the Python interpreter in a session of its own.

    Modules of the current directory do not shadow installed ones.

    Args:
        line: The command after the interpreter.
        environment: All variables.
        directory: Where it runs. Default: here.
        ended: Called with the exit code, in another thread.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self,
        line: Sequence[str],
        environment: Mapping[str, str],
        *,
        directory: str | None = None,
        ended: Callable[[int], None] | None = None,
    ):
        self._ended = ended
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=([sys.executable, "-P", *line], dict(environment), directory, started),
            name="dovetail-daemon",
            daemon=True,
        )
        self._thread.start()
        started.wait()
        if self._error is not None:
            raise self._error

    def _run(
        self,
        command: list[str],
        environment: dict[str, str],
        directory: str | None,
        started: threading.Event,
    ) -> None:
        try:
            self._process = subprocess.Popen(
                [*_first(), *command],
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                # Ctrl-C at a terminal is for the script, which then ends the job in order.
                start_new_session=True,
            )
        except OSError as error:
            self._error = error
            return
        finally:
            started.set()
        code = self._process.wait()
        if self._ended is not None:
            self._ended(code)

    def wait(self) -> int:
        """Waits for the end, and returns the exit code."""
        assert self._process is not None
        return self._process.wait()

    def poll(self) -> int | None:
        """Exit code, None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Sends a signal. Does nothing if the process is gone."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills it and waits for its end. Does nothing if it is gone."""
        self.signal(signal.SIGKILL)
        self._thread.join()


def _first() -> list[str]:
    """Returns the arguments before a command that make it die with the thread that starts it."""
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_THREAD, str(os.getpid())]
