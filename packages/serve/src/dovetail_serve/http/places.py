# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Places`: which connections a server keeps when more come than it may have.

A new connection takes the place of the one that has been idle for longest, or else of the one whose
head is incomplete for longest. One with a request keeps its place. A connection without a place may
send its head: it is answered if a place is free by then, or if it asks for health. A server that an
orchestrator believes dead is killed when it has the most to do.
"""

import itertools
import re
import sys
from collections.abc import Collection
from typing import Any, Protocol, runtime_checkable

# The routes of health, of the server and of a model.
_PROBE = re.compile(rb"/v2/(health/(live|ready)|models/[^/]+(/versions/[^/]+)?/ready)(\?.*)?")

# Connections that are looked at for one to close. In a burst many have bytes that were not read
# yet, and a system call for each of a thousand would hold up the loop for every new connection.
_LOOKS = 16


@runtime_checkable
class Connection(Protocol):
    """A connection.

    Attributes:
        transport: Its transport.
        idle: Whether nothing of a request has come.
    """

    transport: Any

    @property
    def idle(self) -> bool: ...

    def give_way(self) -> None:
        """Closes the connection, which leaves its place."""
        ...


class Places:
    """The connections of a server.

    Args:
        limit: Number of places. As many connections more may be without one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._placed: dict[Connection, None] = {}
        self._others: dict[Connection, None] = {}
        # Those without a complete head, the one that has waited for longest first.
        self._waiting: dict[Connection, None] = {}

    def enter(self, connection: Connection) -> None:
        """Adds a new connection, and gives it a place if there is one."""
        self._others[connection] = None
        self.wait(connection)
        if not self.find(connection) and len(self._others) > self._limit:
            self._close_oldest({other for other in self._others if other is not connection})

    def find(self, connection: Connection) -> bool:
        """Whether a connection has a place, which it now gets if there is one."""
        if connection in self._placed:
            return True
        if len(self._placed) >= self._limit and not self._close_oldest(self._placed):
            return False
        self._others.pop(connection, None)
        self._placed[connection] = None
        return True

    def wait(self, connection: Connection) -> None:
        """Notes that a connection has no request from now on."""
        self._waiting[connection] = None

    def work(self, connection: Connection) -> None:
        """Notes that a connection has a request."""
        self._waiting.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        """Removes a connection, if it is there."""
        for group in (self._placed, self._others, self._waiting):
            group.pop(connection, None)

    def _close_oldest(self, among: Collection[Connection]) -> bool:
        """Closes a connection that waits; returns whether there was one.

        One of which the kernel has bytes is not idle: its request has come and was not read yet.
        """
        for idle in (True, False):
            oldest = (c for c in self._waiting if c.idle is idle and c in among)
            for other in itertools.islice(oldest, _LOOKS):
                if not _has_bytes(other.transport):
                    other.give_way()
                    return True
        return False


def is_probe(target: bytes) -> bool:
    """Whether the target of a request asks for health."""
    return _PROBE.fullmatch(target) is not None


def too_many(limit: int) -> str:
    """Returns the sentence for a connection without a place."""
    return (
        f"a server must have at most {limit} connections, got one more; reuse connections, or "
        "send the request again later"
    )


def _has_bytes(transport: Any) -> bool:
    """Whether the kernel has bytes of a connection that nobody has read."""
    if sys.platform == "win32":
        return False
    import fcntl
    import termios

    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return True  # it is closed already
    return any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
