# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between driver, daemon and rank, around the events and actions of `events`."""

from __future__ import annotations

from typing import NamedTuple

from dovetail_cluster.events import Event


class Hello(NamedTuple):
    """First message of a daemon: its place, and what its machine is called."""

    place: int
    name: str


class Welcome(NamedTuple):
    """Answer to `Hello`.

    Attributes:
        host: The host's number.
        paths: The driver's `sys.path`.
        logs: Whose output the driver wants: "all", "first" or "none".
    """

    host: int
    paths: tuple[str, ...]
    logs: str


class Ready(NamedTuple):
    """The daemon's server of ranks is up."""


class Broken(NamedTuple):
    """The daemon cannot serve, and ends. Nobody should place it again as it is."""

    why: str


class Beat(NamedTuple):
    """A sign of life, each second, both ways."""


class Program(NamedTuple):
    """The function and arguments of a run, pickled. Ranks are started with the newest.

    Args:
        run: Number of the run.
        data: The pickle.
        begun_s: The driver's `time.time()` when the run began.
    """

    run: int
    data: bytes
    begun_s: float = 0.0


class RunEvent(NamedTuple):
    """An event of a run, from a daemon."""

    run: int
    event: Event


class Task(NamedTuple):
    """Call a function on the host, in a process of its own. Answered by `TaskDone`.

    Attributes:
        number: Number of the task.
        data: The pickled function and arguments.
        limit_s: Seconds before the process is killed, None for no limit.
    """

    number: int
    data: bytes
    limit_s: float | None


class TaskDone(NamedTuple):
    """A task has returned or failed.

    Attributes:
        number: Number of the task.
        value: The pickled value, None after a failure.
        why: The traceback, or how the process died.
        error: The pickled exception, if there is one.
    """

    number: int
    value: bytes | None
    why: str
    error: bytes | None


class Leave(NamedTuple):
    """All ranks have reported: the rank of this generation may exit."""

    generation: int


class Clear(NamedTuple):
    """Kill all ranks and tasks. Answered by `Cleared` once they are gone."""

    run: int


class Cleared(NamedTuple):
    """No process of that run, or of one before, is left on the host."""

    run: int


class Fault(NamedTuple):
    """Injure the host: "kill", "stop", "resume" or "stall" its rank, "end" or "notice" itself."""

    kind: str
    seconds: float


class Lines(NamedTuple):
    """Output of a rank or a task. `who` is such as "rank 1"."""

    who: str
    text: str


class Job(NamedTuple):
    """First message to a rank's process.

    Attributes:
        host: Number of the host.
        generation: Number of the generation.
        rank: Number of the rank.
        hosts: Number of ranks.
        address: Address of the coordinator.
        local: Address of this host, for gloo.
        program: The pickled function and arguments.
        shelf: The host's folder for checkpoints of this run.
        begun_s: `time.time()` of the driver when the run began.
    """

    host: int
    generation: int
    rank: int
    hosts: int
    address: str
    local: str
    program: bytes
    shelf: str = ""
    begun_s: float = 0.0


class Stall(NamedTuple):
    """To a rank: let the main thread sleep in its next call of the context."""

    seconds: float
