# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of a run: events of the hosts go to the controller, its actions to the hosts.

The thread that calls `run` owns the controller. All other threads only queue messages.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import pickle
import time
from collections.abc import Callable
from typing import Any

from dovetail_cluster.control.controller import Controller
from dovetail_cluster.elastic import Elastic
from dovetail_cluster.errors import HostsError, JobError, RankError
from dovetail_cluster.events import (
    Event,
    Fail,
    Finish,
    Joined,
    Lost,
    Noticed,
    Probe,
    Probed,
    Raised,
    Resized,
    Returned,
    Say,
    Start,
    Ticked,
)
from dovetail_cluster.run import messages, probe
from dovetail_cluster.run.fleet import Fleet, Member

_TICK_S = 0.1
_CLEAR_S = 15.0  # for hosts to kill what they run; a silent host is lost by then

_log = logging.getLogger("dovetail_cluster")
_numbers = itertools.count(1)  # of runs and tasks, so that a late answer is never mistaken


@dataclasses.dataclass
class Ranks:
    """One generation, as far as the driver must know it.

    Attributes:
        count: Number of ranks.
        ranks: Ranks by host.
        returned: Hosts whose rank has returned.
        errors: Pickled exceptions by rank.
    """

    count: int = 0
    ranks: dict[int, int] = dataclasses.field(default_factory=dict)
    returned: set[int] = dataclasses.field(default_factory=set)
    errors: dict[int, bytes] = dataclasses.field(default_factory=dict)


class Driver:
    """One run of a function on a fleet.

    Args:
        fleet: The hosts.
        elastic: How the run meets failures.
        program: The pickled function and arguments.
        hosts: Number of hosts by the user's wish, None for the most allowed.
        watch: See `Cluster.run`.
    """

    def __init__(
        self,
        fleet: Fleet,
        elastic: Elastic,
        program: bytes,
        *,
        hosts: int | None = None,
        watch: Callable[[str, float], None] | None = None,
    ) -> None:
        self._fleet, self._elastic = fleet, elastic
        self._program = messages.Program(next(_numbers), program, time.time())
        self._hosts, self._watch = hosts, watch
        self._state = ""
        self._generations: dict[int, Ranks] = {}
        self._tasks: dict[int, type[Probed | Noticed]] = {}
        self._end: Finish | Fail | None = None
        self.controller = Controller(elastic, expected=fleet.count)

    @property
    def generations(self) -> int:
        """Number of calls of the function on all hosts."""
        return len(self._generations)

    def run(self) -> tuple[bytes, ...]:
        """Runs the function to its end. Leaves no process of it behind.

        Returns:
            Pickled results by rank.

        Raises:
            JobError: The controller has given up, or a host can never serve.
        """
        begun = self._fleet.begin()
        try:
            if self._hosts is not None:
                self._handle(Resized(self._hosts))
            for member in begun:
                self._join(member.number, member.name, noticed=member.noticed)
            self._loop()
        finally:
            clear(self._fleet, self._program.run)
        assert self._end is not None
        if isinstance(self._end, Fail):
            raise self._explained(self._end.error)
        return self._end.values

    def _loop(self) -> None:
        ticked = 0.0
        while self._end is None:
            item = self._fleet.get(_TICK_S)
            if item is not None:
                self._hear(*item)
            if self._end is None and time.monotonic() - ticked >= _TICK_S:
                ticked = time.monotonic()
                self._handle(Ticked())
            if self._fleet.broken:
                raise JobError(
                    f"every host must be able to serve, but {self._fleet.broken}\n"
                    f"Install what is missing on that host, or leave it out of preload=."
                )

    def _join(self, host: int, name: str, *, noticed: bool = False) -> None:
        self._fleet.send(host, self._program)
        if self._elastic.notice is not None:
            self._task(host, Noticed, probe.watch, self._elastic.notice)
        self._handle(Joined(host, name))
        if noticed:
            self._handle(Noticed(host))

    def _hear(self, host: int, message: Any) -> None:
        match message:
            case Joined(name=name):
                self._join(host, name)
            case Lost() | Resized():
                self._handle(message)
            case messages.RunEvent(run=run, event=event) if run == self._program.run:
                self._note(host, event)
                self._handle(event)
            case messages.RunEvent(event=Noticed()):
                self._handle(Noticed(host))
            case messages.TaskDone(number=number, value=value, why=why):
                kind = self._tasks.pop(number, None)
                if kind is Probed:
                    self._handle(Probed(host, None if value is not None else why.strip()))
                elif kind is Noticed and value is not None:
                    self._handle(Noticed(host))
                elif kind is Noticed:
                    _log.warning("the notice function failed on host %d:\n%s", host, why)

    def _note(self, host: int, event: Event) -> None:
        if not isinstance(event, Returned | Raised):
            return
        generation = self._generations.get(event.generation)
        if generation is None or host not in generation.ranks:
            return
        if isinstance(event, Raised):
            if event.error is not None:
                generation.errors[generation.ranks[host]] = event.error
            return
        generation.returned.add(host)
        if len(generation.returned) == generation.count:
            for each in generation.returned:
                self._fleet.send(each, messages.Leave(event.generation))

    def _handle(self, event: Event) -> None:
        for action in self.controller.handle(event, time.monotonic()):
            match action:
                case Say(text=text, level=level):
                    _log.log(level, "%s", text)
                case Finish() | Fail():
                    self._end = action
                case Probe(host=host):
                    function = self._elastic.probe or probe.probe_devices
                    self._task(host, Probed, function, limit_s=probe.LIMIT_S)
                case Start(host=host, generation=generation, rank=rank, hosts=count):
                    ranks = self._generations.setdefault(generation, Ranks())
                    ranks.count, ranks.ranks[host] = count, rank
                    self._fleet.send(host, action)
                case _:
                    self._fleet.send(action.host, action)
        timeline = self.controller.timeline
        if self._watch is not None and timeline.state != self._state:
            self._state = timeline.state
            self._watch(timeline.state, timeline.since)

    def _task(
        self,
        host: int,
        kind: type[Probed | Noticed],
        function: Any,
        *args: Any,
        limit_s: float | None = None,
    ) -> None:
        import cloudpickle

        number = next(_numbers)
        self._tasks[number] = kind
        data = cloudpickle.dumps((function, args))
        self._fleet.send(host, messages.Task(number, data, limit_s))

    def _explained(self, error: Exception) -> Exception:
        """Gives a rank's error its cause."""
        if isinstance(error, RankError) and error.__cause__ is None:
            generation = self._generations.get(error.generation)
            data = generation.errors.get(error.rank) if generation is not None else None
            if data is not None:
                error.__cause__ = load_error(data)
        return error


def load_error(data: bytes | None) -> BaseException | None:
    """Reads a pickled exception. Returns None if its class cannot be imported here."""
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except Exception:  # any class may fail in any way in its own methods
        return None
    return error if isinstance(error, BaseException) else None


def clear(fleet: Fleet, run: int) -> None:
    """Kills all ranks and tasks, and waits until they are gone."""
    left = set(fleet.hosts())
    for host in left:
        fleet.send(host, messages.Clear(run))
    end = time.monotonic() + _CLEAR_S
    while left and time.monotonic() < end:
        item = fleet.get(_TICK_S)
        if item is not None and isinstance(item[1], messages.Cleared) and item[1].run == run:
            left.discard(item[0])
        left &= set(fleet.hosts())
    fleet.flush()


def call_on_all(fleet: Fleet, data: bytes, *, wait_s: float) -> list[Any]:
    """Calls a pickled function on each host, in a process of its own.

    Args:
        fleet: The hosts.
        data: The pickled function and arguments.
        wait_s: Seconds to wait for all hosts.

    Returns:
        Values by place.

    Raises:
        HostsError: A host did not join in time.
        RankError: The function raised on a host, or its process died.
    """
    fleet.begin()
    hosts = _wait_for_all(fleet, wait_s)
    run, numbers = next(_numbers), {}
    values: dict[int, Any] = {}
    errors: dict[int, RankError] = {}
    try:
        for place, member in hosts.items():
            numbers[member.number] = number = next(_numbers), place
            fleet.send(member.number, messages.Task(number[0], data, None))
        while len(values) + len(errors) < len(hosts):
            host, message = fleet.get(_TICK_S) or (-1, None)
            if host not in numbers:
                continue
            number, place = numbers[host]
            if isinstance(message, Lost):
                done = messages.TaskDone(number, None, message.why, None)
            elif isinstance(message, messages.TaskDone) and message.number == number:
                done = message
            else:
                continue
            del numbers[host]
            if done.value is None:
                errors[place] = _failure(place, hosts[place].name, done)
            else:
                values[place] = pickle.loads(done.value)
    finally:
        clear(fleet, run)
    if errors:
        raise errors[min(errors)]
    return [values[place] for place in sorted(values)]


def _wait_for_all(fleet: Fleet, wait_s: float) -> dict[int, Member]:
    end = time.monotonic() + wait_s
    while missing := fleet.awaited():
        if fleet.broken:
            raise JobError(f"every host must be able to serve, but {fleet.broken}")
        if time.monotonic() > end:
            raise HostsError(
                f"all hosts must join within {wait_s:g} s, got none for "
                f"{', '.join(fleet.name(place) for place in sorted(missing))}; see their daemons' "
                f"own output"
            )
        fleet.get(_TICK_S)
    return fleet.ready()


def _failure(place: int, name: str, done: messages.TaskDone) -> RankError:
    error = RankError(f"the function failed on {name}:\n{done.why}", rank=place, generation=0)
    error.__cause__ = load_error(done.error)
    return error
