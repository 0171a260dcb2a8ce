# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The controller of a job: a pure function of its events.

It has no clock, thread, randomness, input or output. Each event comes with the time, and each
decision leaves as an action. The same events give the same actions, so a log of events replays a
job, and tests run thousands of jobs in a minute.

A job is a sequence of generations. Before each, the controller gathers hosts; during it, it watches
the ranks. A generation ends in one of three ways: all ranks return, all ranks stop at an agreed
question, or all ranks are killed. The next one starts only after all ranks are known gone.
"""

from __future__ import annotations

import logging

from dovetail_cluster import events
from dovetail_cluster.control.gathering import Gathering
from dovetail_cluster.control.generation import Generation, Rank
from dovetail_cluster.control.policy import Failing, Failure, Policy
from dovetail_cluster.control.report import lateness, report
from dovetail_cluster.control.states import Timeline
from dovetail_cluster.control.stop import AgreedStop
from dovetail_cluster.elastic import Elastic
from dovetail_cluster.errors import HostsError, JobError

DUMP_S = 1.5  # for stacks; a host that is cut off never sends any
GRACE_S = 1.0  # after an exception, for news of an earlier fault of another rank
EXIT_S = 10.0  # for a rank to exit after its result
PORT_RETRIES = 5  # a port may be taken by chance, but not so often in a row


class Controller:
    """Decides the actions of the hosts of a job.

    Args:
        elastic: How the job meets failures.
        expected: The number of hosts of the cluster. It is the only allowed number if
            `Elastic.hosts` is None.

    Attributes:
        timeline: The states of the job so far.

    Example:

        >>> from dovetail_cluster import Elastic, events
        >>> controller = Controller(Elastic(), expected=1)
        >>> controller.handle(events.Joined(host=0, name="a"), 0.0)
        [Probe(host=0)]
        >>> controller.handle(events.Probed(host=0, why=None), 0.5)
        [Reserve(host=0, generation=0)]
    """

    def __init__(self, elastic: Elastic, *, expected: int):
        self.timeline = Timeline()
        self._elastic = elastic
        self._policy = Policy(elastic)
        self._gathering = Gathering(elastic, expected)
        self._pool = self._gathering.pool
        self._generation: Generation | None = None
        self._next = 0
        self._ports_taken = 0
        self._over = False
        self._now = float("-inf")
        self._actions: list[events.Action] = []

    @property
    def state(self) -> str:
        """The present state, a word of `states.State`."""
        return self.timeline.state

    @property
    def live(self) -> list[tuple[int, int]]:
        """Pairs (host, generation) of ranks not known to be gone, also after the end."""
        generation = self._generation
        return [(r.host, generation.number) for r in generation.alive] if generation else []

    def handle(self, event: events.Event, now: float) -> list[events.Action]:
        """Takes in an event and returns the actions for it, to be done in order.

        Send `Ticked` a few times a second, because deadlines are noticed at events. After `Finish`
        the ranks exit by themselves; those in `live` are killed after a while.

        Args:
            event: The event.
            now: The present time in seconds, of any clock that does not go back.

        Raises:
            ValueError: The time goes back.
        """
        if now < self._now:
            raise ValueError(
                f"now must not go back, got {now} after {self._now}; write now=time.monotonic()"
            )
        if self._now == float("-inf"):
            self._gathering.restart(now)
        self._now, self._actions = now, []
        self.timeline.advance(now)
        if self._over:
            if isinstance(event, events.Exited | events.Lost):
                self._note(event)
            self._clear_up()
        else:
            routine = isinstance(event, events.Progressed) and self.state == "running"
            self._note(event)
            if not routine:  # a thousand ranks report ten times a second; the next tick looks at it
                self._advance()
        return self._actions

    # Events: they are noted first; nothing is decided here.

    def _note(self, event: events.Event) -> None:
        match event:
            case events.Joined(host, name):
                self._pool.join(host, name)
                self._probe([host])
            case events.Probed(host, why) if host in self._pool.hosts:
                self._pool.probed(host, why)
                if why is not None:
                    self._say(f"{self._pool.hosts[host]} is left out: {why}", logging.WARNING)
            case events.Lost(host, why):
                self._note_lost(host, why)
            case events.Noticed(host) if host in self._pool.hosts:
                self._pool.hosts[host].noticed = True
            case events.Resized(hosts):
                if (why := self._gathering.resize(hosts)) is not None:
                    self._say(why, logging.WARNING)
            case events.Probed() | events.Noticed() | events.Ticked():
                pass
            case _:
                generation = self._generation
                if generation is not None and generation.number == event.generation:
                    rank = generation.rank_on(event.host)
                    if rank is not None and not rank.gone:
                        self._note_rank(generation, rank, event)

    def _note_rank(self, generation: Generation, rank: Rank, event: events.Event) -> None:
        if isinstance(event, events.Lives):
            rank.heard_at = self._now
        if isinstance(event, events.Progressed | events.Answered | events.Returned | events.Raised):
            rank.heard_at, rank.joined = self._now, True
        match event:
            case events.Reserved(address=address):
                if rank.rank == 0:
                    generation.address = address
            case events.Progressed(step=step):
                rank.progressed(event, self._now)
                if step is not None:
                    self._policy.completed(step)
            case events.Answered(host, _, question, accepted, asked):
                rank.has_asked(asked, self._now)
                if generation.stop is not None:
                    generation.stop.answer(host, question, accepted)
            case events.Returned():
                rank.returned = event
                if all(r.returned is not None for r in generation.ranks):
                    generation.returned_at = self._now
            case events.Raised():
                rank.raised = True
                if not generation.killed:
                    self._fault(generation).raised.append(Failing(rank.rank, rank.step, event))
            case events.Exited(code=code):
                rank.gone = True
                if not (rank.returned or rank.raised or generation.killed):
                    failure = self._fault(generation)
                    failure.exits.append((str(rank), code))
                    begun = rank.step is not None or rank.asked > 0
                    failure.port_taken |= code == events.PORT_TAKEN and not begun
            case events.Dumped(stacks=stacks):
                rank.stacks = stacks

    def _note_lost(self, host: int, why: str) -> None:
        self._pool.lose(host, why)
        generation = self._generation
        rank = generation.rank_on(host) if generation is not None else None
        if generation is None or rank is None or rank.gone or not generation.started:
            return
        rank.gone = True
        if rank.returned is None:
            self._fault(generation).lost.append((str(rank), why))

    def _fault(self, generation: Generation) -> Failure:
        """Returns the failure of a generation, begun now if it is the first."""
        if generation.failure is None:
            generation.failure, generation.failed_at = Failure(generation.number), self._now
            self.timeline.enter("restarting", self._now)
        return generation.failure

    # Decisions.

    def _advance(self) -> None:
        for host in self._pool.overdue(self._now):
            self._say(f"{host} is left out: {host.sick}", logging.WARNING)
        self._dismiss()
        generation = self._generation
        if generation is None:
            self._gather()
        elif not generation.started:
            usable = set(generation.hosts) <= set(self._pool.usable)
            if not usable or self._gathering.best != len(generation.ranks):
                self._gather_anew()
            elif generation.address is not None:
                self._start(generation, generation.address)
        elif generation.returned_at is not None:
            self._end(generation)
        elif generation.failure is not None:
            self._recover(generation)
        else:
            self._watch(generation)

    def _dismiss(self) -> None:
        """Lets noticed hosts go, as soon as no rank is on them."""
        busy = self._generation.hosts if self._generation is not None else ()
        for host in self._pool.noticed():
            if host not in busy:
                self._actions.append(events.Dismiss(host, "it will be taken away"))
                self._pool.lose(host, "it was let go after its notice")

    def _gather(self) -> None:
        """Begins the next generation, by the reservation of a port, if there are enough hosts."""
        self._dismiss()
        self.timeline.enter(self._gathering.state, self._now)
        try:
            hosts = self._gathering.choose(self._now)
        except HostsError as error:
            self._fail(error)
            return
        if hosts is not None:
            ranks = [Rank(i, host, self._pool.hosts[host].name) for i, host in enumerate(hosts)]
            self._generation = Generation(self._next, ranks)
            self._next += 1
            self._actions.append(events.Reserve(hosts[0], self._generation.number))
            self.timeline.enter("starting", self._now)

    def _gather_anew(self) -> None:
        self._generation = None
        self._gathering.restart(self._now)
        self._gather()

    def _start(self, generation: Generation, address: str) -> None:
        generation.started, self._gathering.previous = True, generation.hosts
        count = len(generation.ranks)
        for rank in generation.ranks:
            rank.progressed_at = rank.reached_at = self._now
            start = events.Start(rank.host, generation.number, rank.rank, count, address)
            self._actions.append(start)
        names = ", ".join(str(rank) for rank in generation.ranks)
        self._say(f"generation {generation.number} starts: {names}")

    def _watch(self, generation: Generation) -> None:
        """Looks for a stall and for late ranks, then for reasons to stop."""
        if generation.joined and self.state == "starting":
            self._ports_taken = 0
            self.timeline.enter("running", self._now)
        generation.behind = generation.stuck(self._elastic, self._now)
        if generation.behind:
            since = min(rank.progressed_at for rank in generation.behind)
            self.timeline.enter("stuck", self._now, since=since)
            generation.failure, generation.failed_at = Failure(generation.number), self._now
            self._to_all(generation, events.Dump)
            return
        if late := generation.newly_late(self._elastic, self._now):
            self._say(lateness(generation.ranks, late, now=self._now), logging.WARNING)
        returned = any(rank.returned for rank in generation.ranks)
        if generation.stop is None:
            why = self._reason_to_stop(generation)
            if why is None or returned:
                return
            generation.stop, generation.stop_at = AgreedStop(generation.hosts), self._now
            self.timeline.enter("draining", self._now)
            self._say(f"generation {generation.number} stops at an agreed step: {why}")
        self._drain(generation, generation.stop, returned=returned)

    def _reason_to_stop(self, generation: Generation) -> str | None:
        size, best = len(generation.ranks), self._gathering.best
        leaving = [generation.rank_on(host) for host in self._pool.noticed()]
        if any(leaving):
            return f"{', '.join(str(rank) for rank in leaving if rank)} will be taken away"
        if size not in self._gathering.allowed:
            limit = self._gathering.limit
            return f"the job is resized to {limit} hosts" if limit else "the job is suspended"
        # A larger size can wait for the first step, which compiles.
        begun = all(rank.step is not None or rank.asked for rank in generation.ranks)
        if best is not None and best > size and begun:
            return f"{best} hosts are healthy"
        return None

    def _drain(self, generation: Generation, stop: AgreedStop, *, returned: bool) -> None:
        """Goes on with an agreed stop. After the first result it is withdrawn."""
        if stop.withdrawn:
            return
        if self._now >= generation.stop_at + self._elastic.drain_s:
            limit = f"drain_s={self._elastic.drain_s:g}"
            self._say(
                f"the agreed stop did not end within {limit}; ranks are killed", logging.WARNING
            )
            self._fault(generation).planned = True
            self._recover(generation)
        elif returned and not stop.committed:
            question = stop.withdraw()
            if question is not None:
                self._to_all(generation, events.Propose, question)
            self.timeline.enter("running", self._now)
        elif stop.agreed:
            self._to_all(generation, events.Commit, stop.commit())
        elif stop.due and generation.joined:
            self._to_all(generation, events.Propose, stop.propose(generation.asked))

    def _recover(self, generation: Generation) -> None:
        """Kills all ranks of a failed generation, once its cause can be told."""
        failure = generation.failure
        assert failure is not None
        if not generation.killed:
            if not self._told(generation, failure):
                return
            if generation.behind:
                failure.report = report(
                    generation.ranks, generation.behind, elastic=self._elastic, now=self._now
                )
                self._say(failure.report, logging.WARNING)
            generation.killed = True
            self.timeline.enter("restarting", self._now)
            self._to_all(generation, events.Kill)
        if not generation.alive:
            self._conclude(failure)

    def _told(self, generation: Generation, failure: Failure) -> bool:
        """True if no more can be learned by waiting: of stacks, or of a death among the ranks."""
        if generation.behind:
            asked = [rank for rank in generation.alive if rank.returned is None]
            dumped = all(rank.stacks is not None for rank in asked)
            return dumped or self._now >= generation.failed_at + DUMP_S
        unclear = any(not (rank.returned or rank.raised) for rank in generation.alive)
        plain = failure.plain or failure.planned or failure.port_taken
        return plain or not unclear or self._now >= generation.failed_at + GRACE_S

    def _conclude(self, failure: Failure) -> None:
        """Decides after a failure, all ranks being gone."""
        if failure.port_taken and not failure.plain and self._ports_taken < PORT_RETRIES:
            self._ports_taken += 1
            self._say("the coordinator's port was taken; another one is tried")
            self._gather_anew()
            return
        if failure.lost or not failure.planned:
            error = self._policy.decide(failure)
            if error is not None:
                self._generation = None
                self._fail(error)
                return
            left = self._policy.restarts_left(failure.cause)
            text = f"generation {failure.generation} failed: {failure}"
            self._say(f"{text}; {left} restarts are left for {failure.cause}", logging.WARNING)
            if failure.cause == "exception":
                self._say(failure.first.raised.text, logging.WARNING)
        self._probe(self._pool.unprobed())
        self._gather_anew()

    def _end(self, generation: Generation) -> None:
        """Ends a generation after the last result."""
        returned = [rank.returned for rank in generation.ranks if rank.returned is not None]
        if not any(result.stopped for result in returned):
            self._actions.append(events.Finish(tuple(result.value for result in returned)))
            self._over = True
            self.timeline.enter("done", self._now)
            return
        self._clear_up()
        if not generation.alive:
            self._gather_anew()

    def _clear_up(self) -> None:
        """Kills ranks still lingering after their results."""
        generation = self._generation
        if generation is None or generation.returned_at is None or generation.killed:
            return
        if self._now >= generation.returned_at + EXIT_S:
            generation.killed = True
            self._to_all(generation, events.Kill)

    def _fail(self, error: JobError) -> None:
        self._over = True
        self._actions.append(events.Fail(error))
        self.timeline.enter("failed", self._now)

    # Actions.

    def _probe(self, hosts: list[int]) -> None:
        for host in hosts:
            self._pool.hosts[host].probing_since = self._now
            self._actions.append(events.Probe(host))

    def _to_all(self, generation: Generation, action: type, *arguments: int) -> None:
        """Sends an action to all ranks without a result, or a kill to all ranks."""
        for rank in generation.alive:
            if action is events.Kill or rank.returned is None:
                self._actions.append(action(rank.host, generation.number, *arguments))

    def _say(self, text: str, level: int = logging.INFO) -> None:
        self._actions.append(events.Say(text, level))
