# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of a backend, which places one daemon on each host and takes it away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Placed(Protocol):
    """A daemon that a backend has placed."""

    @property
    def name(self) -> str:
        """Name of the place in messages, such as a host's name."""
        ...

    def poll(self) -> int | None:
        """Exit code of the daemon, None while it runs or if the backend cannot tell."""
        ...

    def kill(self) -> None:
        """Ends the daemon and all that it has started, now. Does nothing if it is gone."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A source of hosts.

    Attributes:
        count: Number of hosts to place at first.
        listen: The interface that the controller must listen on, "127.0.0.1" if all is local.
    """

    count: int
    listen: str

    def place(self, line: Sequence[str], environment: Mapping[str, str], *, place: int) -> Placed:
        """Starts a daemon on a host and returns at once.

        Args:
            line: The command after the Python interpreter: `-m dovetail_cluster.run.daemon ...`.
            environment: Variables to add on that host. The key is among them, never in `line`.
            place: Which host, from 0 to `count` - 1. A daemon may be placed again after its end.
        """
        ...

    def close(self) -> None:
        """Gives back what the backend holds, after all daemons have ended."""
        ...
