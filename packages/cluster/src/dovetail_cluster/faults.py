# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Faults for tests: what happens to real hosts, done on purpose to real processes."""

from __future__ import annotations

from dovetail_cluster.run.fleet import Fleet
from dovetail_cluster.run.messages import Fault


class Host:
    """A host of a cluster, and the faults that it can have. All calls return at once.

    A fault of a rank does nothing but log a warning if no rank runs on the host.

    Args:
        fleet: The hosts of the cluster.
        place: Number of this one.
    """

    def __init__(self, fleet: Fleet, place: int) -> None:
        self._fleet, self._place = fleet, place

    def kill(self) -> None:
        """Sends SIGKILL to the rank and the processes in its group."""
        self._inject("kill")

    def stop(self) -> None:
        """Sends SIGSTOP to the rank: it stands still and sends nothing."""
        self._inject("stop")

    def resume(self) -> None:
        """Sends SIGCONT to the rank."""
        self._inject("resume")

    def stall(self, seconds: float) -> None:
        """Lets the rank sleep inside its next `Context.stop` or `progress.write`."""
        if not seconds > 0:
            raise ValueError(f"seconds must be above 0, got seconds={seconds}; write stall(5.0)")
        self._inject("stall", seconds)

    def notice(self) -> None:
        """Sends SIGTERM to the daemon: the host will be taken away soon."""
        self._inject("notice")

    def kill_daemon(self) -> None:
        """Sends SIGKILL to the daemon. Its ranks die with it, and a new daemon is placed."""
        self._inject("end")

    def cut(self) -> None:
        """Drops all messages from and to the daemon, as a broken network."""
        self._fleet.member(self._place).link.cut = True

    def mend(self) -> None:
        """Lets messages through again. Those in between stay lost, and a lost host stays lost."""
        member = self._fleet.ready().get(self._place)
        if member is not None:
            member.link.cut = False

    def remove(self) -> None:
        """Takes the host away: kills its daemon and ranks. It stays away until `restore`."""
        self._fleet.remove(self._place)

    def restore(self) -> None:
        """Brings the host back after `remove`, or after it was dismissed, with a new daemon."""
        self._fleet.restore(self._place)

    def _inject(self, kind: str, seconds: float = 0.0) -> None:
        member = self._fleet.member(self._place)
        self._fleet.send(member.number, Fault(kind, seconds))
