# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job: their health, and their places in the next generation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

PROBE_S = 120.0  # imports JAX and compiles a copy, on a busy machine; a hung device never answers
LOST_NAMED = 8  # in messages; a long job loses many hosts


@dataclasses.dataclass
class Host:
    """A joined host.

    Attributes:
        number: Its number, never used again.
        name: Its name in messages.
        probing_since: When the probe under way was asked for, None without one.
        healthy: Whether its last probe succeeded.
        sick: The reason for leaving it out, None if there is none.
        noticed: It will be taken away soon.
    """

    number: int
    name: str
    probing_since: float | None = None
    healthy: bool = False
    sick: str | None = None
    noticed: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def usable(self) -> bool:
        """True if the next generation may have it."""
        return self.healthy and self.probing_since is None and not self.noticed

    @property
    def promising(self) -> bool:
        """True if its probe is worth waiting for."""
        return self.probing_since is not None and self.sick is None and not self.noticed

    @property
    def condition(self) -> str:
        """Its health, in words."""
        if self.noticed:
            return "will be taken away"
        if self.sick is not None:
            return f"is sick: {self.sick}"
        return "is healthy" if self.probing_since is None else "is being probed"


class Pool:
    """All joined hosts, without the lost ones."""

    def __init__(self) -> None:
        self.hosts: dict[int, Host] = {}
        self.joined = 0  # ever
        self.lost: dict[str, str] = {}  # the last reasons by name

    def join(self, number: int, name: str) -> None:
        """Adds a host, not yet probed."""
        self.hosts[number] = Host(number, name)
        self.joined += 1
        self.lost.pop(name, None)  # it is back

    def lose(self, number: int, why: str) -> None:
        """Removes a host."""
        host = self.hosts.pop(number, None)
        if host is not None:
            self.lost[str(host)] = why
            if len(self.lost) > LOST_NAMED:
                del self.lost[next(iter(self.lost))]

    def probed(self, number: int, why: str | None) -> None:
        """Notes the result of a probe."""
        host = self.hosts[number]
        host.probing_since, host.healthy, host.sick = None, why is None, why

    def overdue(self, now: float) -> list[Host]:
        """Marks hosts as sick if their probe takes too long, and returns them."""
        late = [
            h
            for h in self.hosts.values()
            if h.probing_since is not None and now >= h.probing_since + PROBE_S
        ]
        for host in late:
            self.probed(host.number, f"its probe did not end within {PROBE_S:g} s")
        return late

    def unprobed(self) -> list[int]:
        """Returns the hosts without a probe under way."""
        return [h.number for h in self.hosts.values() if h.probing_since is None]

    def noticed(self) -> list[int]:
        """Returns the hosts with a notice."""
        return [h.number for h in self.hosts.values() if h.noticed]

    @property
    def usable(self) -> list[int]:
        """Numbers of the usable hosts, in order."""
        return sorted(h.number for h in self.hosts.values() if h.usable)

    @property
    def promising(self) -> int:
        """The count of usable hosts, and of those whose probe is under way."""
        return sum(h.usable or h.promising for h in self.hosts.values())

    def __str__(self) -> str:
        present = [f"{host} {host.condition}" for host in self.hosts.values()]
        lost = [f"{name} is lost: {why}" for name, why in self.lost.items()]
        return "; ".join([*present, *lost]) or "none has joined"


def largest(count: int, allowed: Sequence[int]) -> int | None:
    """Returns the largest allowed number up to `count`, None if there is none."""
    return max((n for n in allowed if n <= count), default=None)


def places(usable: Sequence[int], previous: Sequence[int], count: int) -> tuple[int, ...]:
    """Chooses `count` hosts and returns them by rank.

    A host of the previous generation keeps its rank. Free ranks go to hosts of the previous
    generation whose rank no longer exists, then to spares.

    Args:
        usable: The hosts to choose from, at least `count`.
        previous: The hosts of the previous generation, by rank.
        count: The number of ranks.
    """
    kept = [host if host in usable else None for host in previous[:count]]
    kept += [None] * (count - len(kept))
    surplus = [host for host in previous[count:] if host in usable]
    spares = iter([*surplus, *(host for host in usable if host not in previous)])
    return tuple(next(spares) if host is None else host for host in kept)
