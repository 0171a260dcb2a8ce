# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One generation: its ranks, and how far each has come."""

from __future__ import annotations

import dataclasses

from dovetail_cluster.control.policy import Failure
from dovetail_cluster.control.stop import AgreedStop
from dovetail_cluster.elastic import Elastic
from dovetail_cluster.events import Progressed, Returned

SILENT_S = 5.0  # a live rank sends a message each second, also from a busy machine


@dataclasses.dataclass
class Rank:
    """A rank, as its messages show it.

    Attributes:
        rank: Its number in the generation.
        host: Its host.
        name: The name of the host.
        progressed_at: When it last completed a step, asked a question or changed its phase.
        heard_at: When its last message came, None before the first.
        joined: It has joined the others.
        step: The last completed step.
        asked: Count of its calls of `Context.stop`.
        phase: Name of the open phase, "" for none.
        phase_s: Deadline of the open phase, in seconds. None: `Elastic.first_step_s`.
        activity: The newest activity that it has begun, "" before any.
        begun: Number of activities begun.
        reached_at: When its `place` last changed.
        returned: The function's result.
        raised: The function has raised.
        gone: Its process has ended.
        stacks: Its Python stacks, None until dumped.
    """

    rank: int
    host: int
    name: str
    progressed_at: float = 0.0
    heard_at: float | None = None
    joined: bool = False
    step: int | None = None
    asked: int = 0
    phase: str = ""
    phase_s: float | None = None
    activity: str = ""
    begun: int = 0
    reached_at: float = 0.0
    returned: Returned | None = None
    raised: bool = False
    gone: bool = False
    stacks: str | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.name}"

    @property
    def place(self) -> tuple[int, int, int]:
        """Larger the further it has come: questions, the last step, activities before it.

        Questions are first: a trainer reads its steps late, more or less of them by chance.
        """
        if self.step is None:
            return self.asked, -1, self.begun
        return self.asked, self.step, 0

    def progressed(self, event: Progressed, now: float) -> None:
        """Notes a message of progress, or of life."""
        before = self.place
        longer = event.step is not None and (self.step is None or event.step > self.step)
        if longer or event.asked > self.asked or event.phase != self.phase:
            self.progressed_at = now
        self.step = event.step if longer else self.step
        self.asked = max(self.asked, event.asked)
        self.phase, self.phase_s = event.phase, event.stall_s
        self.activity, self.begun = event.activity, event.begun
        if self.place != before:
            self.reached_at = now

    def has_asked(self, asked: int, now: float) -> None:
        """Notes the count of questions in an answer."""
        if asked > self.asked:
            self.asked, self.progressed_at, self.reached_at = asked, now, now

    def deadline_s(self, elastic: Elastic) -> float:
        """Longest time until the next progress, in seconds."""
        if self.phase and self.phase_s is not None:
            return self.phase_s
        is_long = self.phase or self.step is None
        return elastic.first_step_s if is_long else elastic.stall_s

    def fell_silent(self, elastic: Elastic, now: float) -> bool:
        """True if it shows no sign of life, outside of phases with a deadline of their own.

        A rank that compiles or saves sends signs of life. So one that is stopped before its first
        step, or in a save, is found as early as one that is stopped in a step.
        """
        if self.phase and self.phase_s is not None:
            return False
        since = self.progressed_at if self.heard_at is None else self.heard_at
        return now - since >= max(elastic.stall_s, SILENT_S)


@dataclasses.dataclass
class Generation:
    """A generation, from the choice of its hosts until all its ranks are gone.

    Attributes:
        number: Its number.
        ranks: Its ranks in order.
        address: The reserved address of its coordinator, None before.
        started: The ranks have been started.
        stop: The agreed stop under way.
        stop_at: When that stop began.
        failure: The reasons of its end.
        failed_at: When the first of them came.
        behind: The ranks without progress. Their stacks were asked for at `failed_at`.
        late: Places of the ranks when the user was last told that some are late.
        returned_at: When the last result came, None before.
        killed: The ranks have been killed.
    """

    number: int
    ranks: list[Rank]
    address: str | None = None
    started: bool = False
    stop: AgreedStop | None = None
    stop_at: float = 0.0
    failure: Failure | None = None
    failed_at: float = 0.0
    behind: list[Rank] = dataclasses.field(default_factory=list)
    late: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    returned_at: float | None = None
    killed: bool = False

    def __post_init__(self) -> None:
        self._by_host = {rank.host: rank for rank in self.ranks}

    @property
    def hosts(self) -> tuple[int, ...]:
        """Its hosts by rank."""
        return tuple(rank.host for rank in self.ranks)

    @property
    def alive(self) -> list[Rank]:
        """Ranks whose process may still exist."""
        return [rank for rank in self.ranks if self.started and not rank.gone]

    @property
    def joined(self) -> bool:
        """True if all ranks have joined each other."""
        return all(rank.joined for rank in self.ranks)

    @property
    def asked(self) -> int:
        """The most questions of a rank."""
        return max(rank.asked for rank in self.ranks)

    def rank_on(self, host: int) -> Rank | None:
        """Returns the rank on a host."""
        return self._by_host.get(host)

    def newly_late(self, elastic: Elastic, now: float) -> list[Rank]:
        """Returns the ranks that the others wait for before the first step, once for each place.

        They are behind, and no other rank has come further for half of `Elastic.stall_s`.
        """
        places = [rank.place for rank in self.ranks]
        late = [rank for rank in self.ranks if rank.place == min(places)]
        others = [rank for rank in self.ranks if rank not in late]
        if places == self.late or not others or late[0].step is not None or self.stop is not None:
            return []
        if now - max(rank.reached_at for rank in others) < elastic.stall_s / 2:
            return []
        if any(rank.gone or rank.returned is not None for rank in self.ranks):
            return []
        self.late = places
        return late

    def stuck(self, elastic: Elastic, now: float) -> list[Rank]:
        """Returns the ranks without progress for their deadline.

        A rank waiting at the proposed question of a stop cannot progress. After the commit each
        rank saves its state. `Elastic.drain_s` limits both.
        """
        if self.stop is not None and self.stop.committed:
            return []
        question = None if self.stop is None else self.stop.question
        return [
            rank
            for rank in self.alive
            if rank.returned is None
            and (question is None or rank.asked <= question)
            and (
                now - rank.progressed_at >= rank.deadline_s(elastic)
                or rank.fell_silent(elastic, now)
            )
        ]
