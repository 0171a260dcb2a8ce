# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The side of a host that follows host 0, and what the two say to each other. See `env`."""

from __future__ import annotations

import functools
import os
import pickle
import queue
import threading
import time
from typing import Any, NamedTuple

from dovetail_cluster import wire
from dovetail_cluster.backends.process import Process
from dovetail_cluster.errors import HostsError

ADDRESS = "DOVETAIL_CLUSTER_ADDRESS"

# Seconds between two attempts to dial host 0.
AGAIN_S = 0.5


class Follows(NamedTuple):
    """A host is there, and waits for the outcome of that call."""

    host: int
    call: int


class Begin(NamedTuple):
    """Start a daemon. The host adds the key, which does not travel.

    Attributes:
        number: Number of the daemon, which its end is told with.
        line: The command after the Python interpreter.
        environment: Variables to add.
    """

    number: int
    line: tuple[str, ...]
    environment: dict[str, str]


class Ended(NamedTuple):
    """The daemon of that number has ended with this exit code."""

    number: int
    code: int


class End(NamedTuple):
    """Kill the daemon."""


class Outcome(NamedTuple):
    """A call on host 0 is over.

    Attributes:
        call: Number of the call, from 1.
        value: Its pickled value, or its pickled exception.
        raised: Whether it is an exception.
    """

    call: int
    value: bytes
    raised: bool


class Follower:
    """Serves host 0 on another host, in a thread, from the first call until it is closed.

    Args:
        address: "HOST:PORT" of host 0.
        key: The key.
        host: Index of this host.
        wait_s: Seconds without host 0 after which `outcome` raises.

    Attributes:
        daemon: The daemon, None before the first.
    """

    def __init__(self, address: str, key: bytes, *, host: int, wait_s: float):
        self._address, self._key, self._host, self._wait_s = address, key, host, wait_s
        self.daemon: Process | None = None
        self._outcomes: dict[int, Outcome] = {}
        self._failure: HostsError | None = None
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._link: wire.Link | None = None
        self._thread = threading.Thread(target=self._run, name="dovetail-follow", daemon=True)

    def outcome(self, call: int) -> Any:
        """Waits for the outcome of a call on host 0, and returns its value or raises its error."""
        # Not before: no daemon may be up while SIGTERM still ends the script.
        if self._thread.ident is None:
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: call in self._outcomes or self._failure is not None)
            outcome = self._outcomes.get(call)
        if outcome is None:
            assert self._failure is not None
            raise self._failure
        value = pickle.loads(outcome.value)
        if outcome.raised:
            raise value
        return value

    def close(self) -> None:
        """Kills the daemon and hangs up."""
        self._closed.set()
        if self._link is not None:
            self._link.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        deadline = time.monotonic() + self._wait_s
        while not self._closed.is_set():
            try:
                link = self._link = wire.dial(self._address, self._key)
            except OSError as error:
                if time.monotonic() > deadline:
                    self._fail(error)
                    return
                self._closed.wait(AGAIN_S)
                continue
            self._serve(link)
            deadline = time.monotonic() + self._wait_s

    @staticmethod
    def _ended(link: wire.Link, number: int, code: int) -> None:
        link.send(Ended(number, code))

    def _fail(self, error: OSError) -> None:
        with self._changed:
            self._failure = HostsError(
                f"host 0 must answer at {self._address} within wait_s={self._wait_s:g}, got "
                f"{error}; start the script there too, and compare {ADDRESS} and the key on both"
            )
            self._changed.notify_all()

    def _serve(self, link: wire.Link) -> None:
        """Serves one connection, until it ends."""
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        link.start(inbox.put, lambda why: inbox.put(None))
        link.send(Follows(self._host, len(self._outcomes) + 1))
        if self._closed.is_set():  # between the dial and here
            link.close()
        while (message := inbox.get()) is not None:
            if isinstance(message, Begin):
                self.daemon = Process(
                    message.line,
                    {**os.environ, **message.environment},
                    ended=functools.partial(self._ended, link, message.number),
                )
            elif isinstance(message, End) and self.daemon is not None:
                self.daemon.kill()
            elif isinstance(message, Outcome):
                with self._changed:
                    self._outcomes.setdefault(message.call, message)
                    self._changed.notify_all()
        if self.daemon is not None:
            self.daemon.kill()
        link.close()
