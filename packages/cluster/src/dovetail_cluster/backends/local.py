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
    """Places daemons as processes of this machine.

    Args:
        hosts: Number of hosts.
        devices_per_host: Number of CPU devices of each. None leaves the devices to JAX: the one
            host has all of this machine's GPUs or TPUs.

    Raises:
        ValueError: A number is below 1, or several hosts would share accelerators.
    """

    listen = "127.0.0.1"

    def __init__(self, hosts: int, *, devices_per_host: int | None = 1) -> None:
        for name, number in (("hosts", hosts), ("devices_per_host", devices_per_host)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {name}={number}; write {name}=2")
        if devices_per_host is None and hosts > 1:
            raise ValueError(
                f"hosts of one machine must not share its accelerators, got hosts={hosts} with "
                f"devices_per_host=None; write hosts=1, or devices_per_host=1 for CPU devices"
            )
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
        devices = [] if self._devices is None else ["--devices", str(self._devices)]
        process = subprocess.Popen(
            [sys.executable, "-P", *line, *devices],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C at a terminal is for the driver
        )
        return LocalPlaced(process, f"local host {place}")

    def close(self) -> None:
        """Does nothing: there is nothing beyond the daemons."""
