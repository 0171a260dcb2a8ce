# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon on this machine that does not outlive the process that has started it.

A daemon ends when it loses its controller. A host that is taken away from Ray, or whose script is
killed, leaves the controller alive, so the daemon must die with its parent. Linux ties that to the
thread that forks; each daemon therefore has a thread, which starts it and waits for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

# From <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1


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
                command,
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                # Ctrl-C at a terminal is for the script, which then ends the job in order.
                start_new_session=True,
                preexec_fn=_die_with_thread(),
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


def _die_with_thread() -> Callable[[], None] | None:
    """A function that makes a new process die with the thread that starts it, on Linux."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has died in between
            os.kill(os.getpid(), signal.SIGKILL)

    return before_exec
