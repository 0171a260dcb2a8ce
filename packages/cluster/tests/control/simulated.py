# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated cluster: daemons and ranks that do what a controller tells them, on a virtual clock.

Ranks train in lockstep: each asks whether to stop, computes, and waits for the others. Messages
take a random time. They arrive in order between one host and the controller, in any order between
hosts. Faults are methods. The rules for every job are asserted at each event and action.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from simulated_hosts import Daemon, Process

from dovetail_cluster import Elastic, events
from dovetail_cluster.control.controller import Controller

TICK_S = 0.25
BEAT_S = 0.4  # between signs of life, so that the controller's counts are late


class Simulation:
    """A job on simulated hosts.

    Args:
        elastic: Options of the job.
        expected: Hosts of the cluster, which join at once.
        steps: Steps of the job.
        seed: Seed of all random times.
        save_every: Steps between checkpoints.
        asks: Whether the function asks to stop.
        reports: Whether the function reports progress.
    """

    def __init__(
        self,
        elastic: Elastic,
        *,
        expected: int,
        steps: int = 20,
        seed: int = 0,
        save_every: int = 5,
        asks: bool = True,
        reports: bool = True,
    ):
        self.elastic, self.expected, self.steps = elastic, expected, steps
        self.save_every, self.asks, self.reports = save_every, asks, reports
        self.random = random.Random(seed)
        self.controller = Controller(elastic, expected=expected)
        self.now = 0.0
        self.hosts: dict[int, Daemon] = {}
        self.log: list[tuple[events.Event, float]] = []
        self.actions: list[events.Action] = []
        self.saved = 0  # steps in the checkpoint
        self.first_steps: dict[int, int] = {}  # by generation
        self.processes: list[Process] = []
        self.ports_taken = 0  # the next reservations that fail
        self.raises: dict[int, str] = {}  # an exception of every rank, at each try of a step
        self.step_s = 0.3
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._tick()
        for _ in range(expected):
            self.join()

    # Time.

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        """Calls `what` after a delay."""
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), what))

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end and not self.over:
            self.now, _, what = heapq.heappop(self._queue)
            what()
        self.now = self.now if self.over else end

    def run_until(self, condition: Callable[[], object], limit_s: float = 5000.0) -> None:
        """Lets time pass until a condition holds."""
        end = self.now + limit_s
        while not condition():
            assert not self.over, self.actions[-1]
            assert self.now < end, self.controller.state
            self.run(0.05)

    def finish(self, limit_s: float = 5000.0) -> events.Finish | events.Fail:
        """Lets time pass until the job is over."""
        self.run(limit_s)
        assert self.over, self.controller.state
        return self.actions[-1]

    @property
    def over(self) -> bool:
        return bool(self.actions) and isinstance(self.actions[-1], events.Finish | events.Fail)

    def _tick(self) -> None:
        self.hear(events.Ticked())
        self.at(TICK_S, self._tick)

    # Messages.

    def hear(self, event: events.Event) -> None:
        """Gives an event to the controller, and its actions to the hosts."""
        if isinstance(event, events.Exited | events.Lost):
            for process in self.processes:
                start = process.start
                if start.host == event.host and start.generation == getattr(
                    event, "generation", start.generation
                ):
                    process.known_gone = True
        self.log.append((event, self.now))
        actions = self.controller.handle(event, self.now)
        self.actions += actions
        starts = [a for a in actions if isinstance(a, events.Start)]
        if starts:
            self._check_starts(starts)
            self.processes += [Process(start) for start in starts]
        for action in actions:
            if isinstance(action, events.Finish):
                self._check_finish(action)
            elif isinstance(action, events.Fail):
                assert all(p.known_gone for p in self.processes)
            elif not isinstance(action, events.Say):
                self._send(action)
        spans = self.controller.timeline.spans
        assert all(a[2] == b[1] for a, b in itertools.pairwise(spans))
        if spans:
            assert (spans[0][1], spans[-1][2]) == (0.0, self.now)

    def _latency_s(self) -> float:
        return self.random.choice((0.001, 0.001, 0.01, 0.1, 0.6))

    def tell(self, daemon: Daemon, event: events.Event) -> None:
        """Sends an event of a host to the controller."""
        daemon.up_at = max(daemon.up_at, self.now + self._latency_s())
        self.at(daemon.up_at - self.now, lambda: daemon.present and self.hear(event))

    def _send(self, action: events.Action) -> None:
        daemon = self.hosts.get(action.host)
        if daemon is None:
            return
        daemon.down_at = max(daemon.down_at, self.now + self._latency_s())
        self.at(daemon.down_at - self.now, lambda: daemon.present and self._do(daemon, action))

    # What must hold.

    def _check_starts(self, starts: list[events.Start]) -> None:
        allowed = self.elastic.hosts or (self.expected,)
        assert [s.rank for s in starts] == list(range(len(starts)))
        assert {s.hosts for s in starts} == {len(starts)} <= set(allowed)
        assert len({(s.generation, s.address) for s in starts}) == 1
        assert len({s.host for s in starts}) == len(starts)
        assert all(p.known_gone for p in self.processes)
        assert starts[0].generation > max((p.start.generation for p in self.processes), default=-1)
        noticed = {e.host for e, _ in self.log if isinstance(e, events.Noticed)}
        assert not noticed & {s.host for s in starts}

    def _check_finish(self, finish: events.Finish) -> None:
        last = max(p.start.generation for p in self.processes)
        ranks = [p for p in self.processes if p.start.generation == last]
        assert len(ranks) == ranks[0].start.hosts
        assert all(p.returned and p.stopped_at is None for p in ranks)
        assert finish.values == tuple(b"%d" % p.start.rank for p in ranks)

    def check_replay(self) -> None:
        """Asserts that the log of events gives the same actions again."""
        again = Controller(self.elastic, expected=self.expected)
        actions = [a for event, now in self.log for a in again.handle(event, now)]
        assert [str(a) for a in actions] == [str(a) for a in self.actions]

    # A daemon.

    def _do(self, daemon: Daemon, action: events.Action) -> None:
        process = daemon.process
        match action:
            case events.Probe(host):
                if daemon.answers_probes:
                    why = daemon.sick
                    self.at(0.2, lambda: self.tell(daemon, events.Probed(host, why)))
            case events.Reserve(host, generation):
                self.tell(daemon, events.Reserved(host, generation, f"{host}:{next(self._order)}"))
            case events.Start():
                assert process is None or not process.alive
                daemon.process = next(p for p in self.processes if p.start == action)
                self.at(self.random.uniform(0.05, 0.5), self._boot(daemon, daemon.process))
            case events.Dismiss():
                assert process is None or not process.alive
                self.at(0.1, lambda: self.remove(daemon.number))
            case events.Kill(host, generation):
                if process is not None and process.alive:
                    self.end(daemon, process, -9)
                else:
                    self.tell(daemon, events.Exited(host, generation, 0))
            case events.Dump(host, generation):
                if process is not None and process.alive and not process.paused:
                    stacks = 'Current thread 0x01 (most recent call first):\n  File "t.py", line 1'
                    self.tell(daemon, events.Dumped(host, generation, stacks))
            case events.Propose() | events.Commit() if process is not None:
                self._stop_message(daemon, process, action)

    def end(self, daemon: Daemon, process: Process, code: int) -> None:
        """Ends a process."""
        process.alive = False
        start = process.start
        self.tell(daemon, events.Exited(start.host, start.generation, code))

    # A rank.

    def _boot(self, daemon: Daemon, process: Process) -> Callable[[], None]:
        def boot() -> None:
            if not self._lives(daemon, process):
                return
            if process.start.rank == 0 and self.ports_taken:
                self.ports_taken -= 1
                self.end(daemon, process, events.PORT_TAKEN)
                return
            generation = process.start.generation
            process.next_step = self.first_steps.setdefault(generation, self.saved)
            self._beat(daemon, process)
            self._ask(daemon, process)

        return boot

    def _lives(self, daemon: Daemon, process: Process) -> bool:
        return daemon.present and process.alive and process.returned is None

    def _beat(self, daemon: Daemon, process: Process) -> None:
        if self._lives(daemon, process):
            if not process.paused:
                self._progress(daemon, process)
            self.at(BEAT_S, lambda: self._beat(daemon, process))

    def _progress(self, daemon: Daemon, process: Process) -> None:
        step = process.step if self.reports else None
        asked, start = process.asked, process.start
        self.tell(daemon, events.Progressed(start.host, start.generation, step, asked, "", None))

    def _stuck(self, process: Process) -> bool:
        return process.paused or process.hung

    def _ask(self, daemon: Daemon, process: Process) -> None:
        if not self._lives(daemon, process) or self._stuck(process):
            return
        if process.next_step >= self.steps:
            self._return(daemon, process, stopped=False)
            return
        if not self.asks:
            self._compute(daemon, process)
            return
        question, process.asked = process.asked, process.asked + 1
        if process.committed == question:
            self._stop(daemon, process, question)
        elif process.proposed == question:
            process.waits = question
        else:
            self._compute(daemon, process)

    def _stop_message(self, daemon: Daemon, process: Process, action: events.Action) -> None:
        if not self._lives(daemon, process) or process.paused:
            return
        host, generation, question = action
        if isinstance(action, events.Commit):
            process.committed = question
            if process.waits == question:
                self._stop(daemon, process, question)
            return
        accepted = question >= process.asked
        if accepted:
            process.proposed = question
            if process.waits is not None:
                process.waits = None
                self._compute(daemon, process)
        answer = events.Answered(host, generation, question, accepted, process.asked)
        self.tell(daemon, answer)

    def _stop(self, daemon: Daemon, process: Process, question: int) -> None:
        process.stopped_at = question
        same = [p for p in self.processes if p.start.generation == process.start.generation]
        assert {p.stopped_at for p in same} <= {question, None}
        assert len({p.next_step for p in same if p.stopped_at is not None}) == 1
        self.saved = max(self.saved, process.next_step)
        save_s = self.random.uniform(0.05, 0.5)
        self.at(save_s, lambda: self._return(daemon, process, stopped=True))

    def _compute(self, daemon: Daemon, process: Process) -> None:
        def arrive() -> None:
            if not self._lives(daemon, process) or self._stuck(process):
                return
            text = self.raises.get(process.next_step)
            if text is not None:
                self.throw(daemon, process, text)
                return
            process.arrived = True
            group = self._group(process)
            if len(group) == process.start.hosts and all(p.arrived for _, p in group):
                for _, p in group:
                    p.arrived = False
                for d, p in group:
                    self.at(self.random.uniform(0.0, 0.02), lambda d=d, p=p: self._complete(d, p))

        self.at(self.step_s * self.random.uniform(0.5, 1.5), arrive)

    def _group(self, process: Process) -> list[tuple[Daemon, Process]]:
        """The living ranks of the generation of a rank."""
        alive = [(d, d.process) for d in self.hosts.values() if d.process and d.process.alive]
        return [(d, p) for d, p in alive if p.start.generation == process.start.generation]

    def _complete(self, daemon: Daemon, process: Process) -> None:
        if not self._lives(daemon, process) or process.paused:
            return
        process.step = process.next_step
        process.next_step += 1
        if process.next_step % self.save_every == 0:
            self.saved = max(self.saved, process.next_step)
        self._ask(daemon, process)

    def _return(self, daemon: Daemon, process: Process, *, stopped: bool) -> None:
        if not self._lives(daemon, process) or process.paused:
            return
        self._progress(daemon, process)
        process.returned = True
        start = process.start
        value = b"%d" % start.rank
        self.tell(daemon, events.Returned(start.host, start.generation, value, stopped))
        linger = self.random.choice((0.01, 0.1, 1e6))
        self.at(linger, lambda: process.alive and self.end(daemon, process, 0))

    def throw(self, daemon: Daemon, process: Process, text: str) -> None:
        """An exception in a rank, whose process then ends."""
        self._progress(daemon, process)
        start = process.start
        raised = events.Raised(
            start.host, start.generation, "ValueError", text, f"Traceback\n{text}", None
        )
        self.tell(daemon, raised)
        self.end(daemon, process, 1)

    # Faults.

    def join(self) -> int:
        """Adds a host and returns its number."""
        number = next(self._numbers)
        self.hosts[number] = Daemon(number)
        self.tell(self.hosts[number], events.Joined(number, f"h{number}"))
        return number

    def remove(self, number: int) -> None:
        """Takes a host away, with the messages that it has not sent."""
        daemon = self.hosts.pop(number, None)
        if daemon is None:
            return
        daemon.present = False
        if daemon.process is not None:
            daemon.process.alive = False
        self.at(self._latency_s(), lambda: self.hear(events.Lost(number, "no word for 10 s")))

    def running(self) -> list[tuple[Daemon, Process]]:
        """The ranks that live and have not returned."""
        pairs = [(d, d.process) for d in self.hosts.values() if d.process]
        return [(d, p) for d, p in pairs if self._lives(d, p)]

    def crash(self, daemon: Daemon, process: Process, code: int = -9) -> None:
        """Kills a rank. The others fail by exceptions, by signals or not at all."""
        self.end(daemon, process, code)
        for d, p in self._group(process):
            fate = self.random.choice(("hangs", "raises", "aborts"))
            if fate == "raises" and p.returned is None and not p.paused:
                self.throw(d, p, f"Connection reset by peer, {next(self._order)}")
            elif fate == "aborts" and p.returned is None and not p.paused:
                self.end(d, p, -6)

    def notice(self, number: int) -> None:
        """Announces the end of a host."""
        self.tell(self.hosts[number], events.Noticed(number))

    def resize(self, hosts: int | None) -> None:
        """Asks for another number of hosts."""
        self.hear(events.Resized(hosts))

    # For tests.

    def said(self) -> str:
        """Returns all lines for the user."""
        return "\n".join(a.text for a in self.actions if isinstance(a, events.Say))

    def starts(self) -> list[tuple[int, ...]]:
        """The hosts by rank of each started generation."""
        generations: dict[int, list[int]] = {}
        for action in self.actions:
            if isinstance(action, events.Start):
                generations.setdefault(action.generation, []).append(action.host)
        return [tuple(hosts) for hosts in generations.values()]
