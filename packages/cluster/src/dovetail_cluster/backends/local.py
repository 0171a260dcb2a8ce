# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts that are processes of this machine, each with CPU devices of its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

_KILL_S = 10.0  # for the kernel to end what the daemon has started


class LocalPlaced:
    """A daemon on this machine.

    Its standard output is a pipe that all its processes hold open and none writes to: the pipe ends
    when the last of them has ended.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._process, self._name = process, name

    @property
    def name(self) -> str:
        return self._name

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        output = self._process.stdout
        assert output is not None
        if output.closed:
            return
        end = time.monotonic() + _KILL_S
        while (left := end - time.monotonic()) > 0:
            if select.select([output], [], [], left)[0] and not os.read(output.fileno(), 4096):
                break
        else:
            # None in the group if a program outside it holds the pipe.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        output.close()


class Local:
    """Places daemons as processes of this machine, for tests and for one machine's cores.

    Args:
        hosts: Number of hosts.
        devices_per_host: Number of CPU devices of each.

    Raises:
        ValueError: A number is below 1.
    """

    listen = "127.0.0.1"

    def __init__(self, hosts: int, *, devices_per_host: int = 1) -> None:
        for name, number in (("hosts", hosts), ("devices_per_host", devices_per_host)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {name}={number}; write {name}=2")
        self.count, self._devices = hosts, devices_per_host

    def place(
        self, line: Sequence[str], environment: Mapping[str, str], *, place: int
    ) -> LocalPlaced:
        """Starts a daemon. See `Backend.place`.

        Args:
            line: The command after the interpreter.
            environment: Variables to add.
            place: Number of the host.
        """
        process = subprocess.Popen(
            [sys.executable, "-P", *line, "--devices", str(self._devices)],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C at a terminal is for the driver
        )
        return LocalPlaced(process, f"local host {place}")

    def close(self) -> None:
        """Does nothing: there is nothing beyond the daemons."""
