# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon's hold on one process that its server forks: messages, output and stacks."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from dovetail_cluster.run.messages import Lines
from dovetail_cluster.wire import Link

_STACKS_S = 1.0  # a process that writes no stacks within it is stopped by the kernel
_PENDING = 200  # messages to the controller; a rank that prints faster waits in its print

# Written by gloo to the standard output of every rank in every generation.
_GLOO = re.compile(
    rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. "
    rb"Expected number of connected peer ranks is : \d+"
)


class Child:
    """One forked process, as the daemon sees it.

    Args:
        number: The daemon's number for it.
        first: The first message to it.
        receive: Called with each of its messages, in a thread.

    Attributes:
        files: Descriptors for the process; close them when it has them.
        ended: Exit code, None while it may run.
    """

    def __init__(self, number: int, first: Any, receive: Callable[[Any], None]) -> None:
        self.number, self.first = number, first
        self.ended: int | None = None
        self._receive = receive
        self._read = threading.Event()  # all that it has sent
        own, theirs = socket.socketpair()
        self._output, output = os.pipe()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115, closed by `close`
        self.files = [theirs.detach(), output, os.dup(self._stacks.fileno())]
        self._link = Link(own)

    def start(self, who: str, to: Link, *, log: bool) -> None:
        """Starts the threads that read messages and output.

        Args:
            who: Name of the process in the log, such as "rank 1".
            to: Connection to the controller, for the output.
            log: Send the output. It is read either way.
        """
        for file in self.files:
            os.close(file)
        self._link.start(self._receive, lambda why: self._read.set())
        self._link.send(self.first)
        self._printer = threading.Thread(
            target=self._copy, args=(who, to, log), daemon=True, name="dovetail-output"
        )
        self._printer.start()

    def send(self, message: Any) -> None:
        """Sends a message to the process."""
        self._link.send(message)

    def stacks(self, signal_it: Callable[[], None]) -> str:
        """Asks for the Python stacks and waits for them. Returns "" if none come.

        Args:
            signal_it: Sends SIGUSR1 to the process.
        """
        file = self._stacks.fileno()
        begin = os.fstat(file).st_size
        signal_it()
        end, size = time.monotonic() + _STACKS_S, begin
        while time.monotonic() < end:
            time.sleep(0.05)
            now = os.fstat(file).st_size
            if now > begin and now == size:
                break
            size = now
        return os.pread(file, size - begin, begin).decode(errors="replace")

    def close(self) -> None:
        """Waits briefly for the last messages and output, and closes everything."""
        self._read.wait(1.0)  # a program that the rank has left may hold them open
        self._printer.join(1.0)
        self._link.close(flush_s=0.0)
        self._stacks.close()

    def _copy(self, who: str, to: Link, log: bool) -> None:
        rest = b""
        with open(self._output, "rb", buffering=0) as output:
            while data := output.read(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                lines = [line for line in lines if not _GLOO.fullmatch(line)]
                if lines and log:
                    to.send(Lines(who, b"\n".join(lines).decode(errors="replace")))
                while to.pending > _PENDING:
                    time.sleep(0.01)
        if rest and log:
            to.send(Lines(who, rest.decode(errors="replace")))
