# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The choice of hosts for the next generation, and the wait for more of them."""

from __future__ import annotations

from dovetail_cluster.control.hosts import Pool, largest, places
from dovetail_cluster.control.states import State
from dovetail_cluster.elastic import Elastic
from dovetail_cluster.errors import HostsError

SETTLE_S = 10.0  # at the very beginning, for hosts that are expected and not yet there


class Gathering:
    """Waits for enough hosts and chooses among them.

    Args:
        elastic: The options of the job.
        expected: The number of hosts of the cluster.

    Attributes:
        pool: The hosts.
        limit: The most hosts to use, None for no limit. 0 suspends the job.
        previous: The hosts of the last started generation, by rank.
    """

    def __init__(self, elastic: Elastic, expected: int):
        self.pool = Pool()
        self.limit: int | None = None
        self.previous: tuple[int, ...] = ()
        self._all_allowed = elastic.hosts or (expected,)
        self._expected, self._wait_s = expected, elastic.wait_s
        self._begun_at: float | None = None
        self._enough_at = 0.0  # when there were enough hosts, last

    @property
    def allowed(self) -> tuple[int, ...]:
        """The allowed numbers of hosts within the limit."""
        return tuple(n for n in self._all_allowed if self.limit is None or n <= self.limit)

    @property
    def best(self) -> int | None:
        """The largest allowed number of hosts, filled by usable ones."""
        return largest(len(self.pool.usable), self.allowed)

    def resize(self, hosts: int | None) -> str | None:
        """Sets the limit, or returns a reason for ignoring it."""
        if hosts and largest(hosts, self._all_allowed) is None:
            least = min(self._all_allowed)
            return (
                f"a resize takes 0 or at least the least allowed number of hosts, {least}, got "
                f"{hosts}; write Elastic(hosts=({hosts}, {least})) to allow it"
            )
        self.limit = hosts
        return None

    def restart(self, now: float) -> None:
        """Begins to wait."""
        self._enough_at = now
        if self._begun_at is None:
            self._begun_at = now

    def choose(self, now: float) -> tuple[int, ...] | None:
        """Returns hosts by rank, or None to wait.

        A probe under way is worth waiting for. Expected hosts are so only at the
        beginning of the job: later, a smaller generation starts at once.

        Args:
            now: The present time.

        Raises:
            HostsError: There were too few hosts for too long.
        """
        if self.limit == 0:
            self._enough_at = now
            return None
        hoped = largest(self.pool.promising, self.allowed)
        if hoped is not None:
            self._enough_at = now
        elif now >= self._enough_at + self._wait_s:
            raise self._too_few()
        if not self.previous and now < (self._begun_at or 0.0) + SETTLE_S:
            absent = max(0, self._expected - self.pool.joined)
            hoped = largest(self.pool.promising + absent, self.allowed)
        count = self.best
        if count is None or count != hoped:
            return None
        return places(self.pool.usable, self.previous, count)

    @property
    def state(self) -> State:
        """The state of the job while it gathers."""
        if self.limit == 0:
            return "suspended"
        enough = largest(self.pool.promising, self.allowed) is not None
        return "restarting" if self.previous and enough else "waiting"

    def _too_few(self) -> HostsError:
        healthy, least = len(self.pool.usable), min(self.allowed)
        fewer = f"hosts=({healthy}, {least}) to go on with fewer, or " if healthy else ""
        return HostsError(
            f"the number of healthy hosts must reach one of {self.allowed} within "
            f"wait_s={self._wait_s:g}, got {healthy} of {self._expected} hosts "
            f"({self.pool}); write {fewer}a larger wait_s"
        )
