# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Events and actions of the controller, its whole language.

A host is a number that a daemon gets when it joins, and that is never used again. A generation is
one call of the user's function on all hosts of the job; a rank is a host's place in it.
"""

from __future__ import annotations

from typing import NamedTuple

PORT_TAKEN = 98  # exit code of a first rank that could not listen at its address (as EADDRINUSE)


class Joined(NamedTuple):
    """A daemon has connected, and its server of ranks is up."""

    host: int
    name: str


class Probed(NamedTuple):
    """A host has been probed. `why` says what is wrong with it, None if nothing is."""

    host: int
    why: str | None


class Reserved(NamedTuple):
    """A host offers an address for the coordinator of a generation.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        address: "HOST:PORT".
    """

    host: int
    generation: int
    address: str


class Lives(NamedTuple):
    """A sign of life of a rank that has not joined the others yet."""

    host: int
    generation: int


class Progressed(NamedTuple):
    """Progress of a rank, at most ten times a second. It is also a sign of life.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        step: The last completed step, None before the first.
        asked: Number of calls of `Context.stop`.
        phase: Name of the open phase, "" for none.
        stall_s: Deadline of the phase in seconds, None for `Elastic.first_step_s`.
        activity: The newest activity that the rank has begun, "" before any.
        begun: Number of activities begun.
    """

    host: int
    generation: int
    step: int | None
    asked: int
    phase: str
    stall_s: float | None
    activity: str = ""
    begun: int = 0


class Answered(NamedTuple):
    """Answer of a rank to `Propose`.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        question: Number of a call of `Context.stop`, from 0.
        accepted: The rank will wait at the question.
        asked: Number of calls of `Context.stop`.
    """

    host: int
    generation: int
    question: int
    accepted: bool
    asked: int


class Returned(NamedTuple):
    """The user's function has returned.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        value: Its pickled result.
        stopped: `Context.stop` has returned True.
    """

    host: int
    generation: int
    value: bytes
    stopped: bool


class Raised(NamedTuple):
    """The user's function has raised.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        kind: Name of the exception's class.
        message: Its message.
        text: Its traceback.
        error: The pickled exception, None if it cannot be pickled.
        before: Pairs (kind, message) of the exceptions during which it was raised, newest first.
        final: Another start would raise it again: its attribute `final` is true.
    """

    host: int
    generation: int
    kind: str
    message: str
    text: str
    error: bytes | None
    before: tuple[tuple[str, str], ...] = ()
    final: bool = False


class Exited(NamedTuple):
    """The process of a rank is gone.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        code: Its exit code, negative for a signal. After `PORT_TAKEN` the generation starts
            again at another port.
    """

    host: int
    generation: int
    code: int


class Dumped(NamedTuple):
    """Python stacks of a rank.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        stacks: The stacks, "" if there are none.
    """

    host: int
    generation: int
    stacks: str


class Lost(NamedTuple):
    """A daemon is gone or silent, and its ranks with it."""

    host: int
    why: str


class Noticed(NamedTuple):
    """A host will be taken away soon: SIGTERM at its daemon, or the user's own notice."""

    host: int


class Resized(NamedTuple):
    """The user asks for so many hosts from now on; None: as many as there are. 0 suspends."""

    hosts: int | None


class Ticked(NamedTuple):
    """Time has passed."""


Event = (
    Joined | Probed | Reserved | Lives | Progressed | Answered | Returned | Raised | Exited
    | Dumped | Lost | Noticed | Resized | Ticked
)  # fmt: skip


class Probe(NamedTuple):
    """Probe a host. Answered by `Probed`."""

    host: int


class Reserve(NamedTuple):
    """Find a free port for the coordinator. Answered by `Reserved`."""

    host: int
    generation: int


class Start(NamedTuple):
    """Fork a rank, which joins the others and calls the user's function.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        rank: Number of the rank.
        hosts: Number of ranks.
        address: "HOST:PORT" of the coordinator.
    """

    host: int
    generation: int
    rank: int
    hosts: int
    address: str


class Propose(NamedTuple):
    """Ask a rank to wait at a question. Answered by `Answered`.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        question: Number of a call of `Context.stop`, from 0.
    """

    host: int
    generation: int
    question: int


class Commit(NamedTuple):
    """Let a rank that waits, or will wait, at a question answer it with True.

    Args:
        host: Number of the host.
        generation: Number of the generation.
        question: Number of a call of `Context.stop`, from 0.
    """

    host: int
    generation: int
    question: int


class Dump(NamedTuple):
    """Ask for the stacks of a rank. Answered by `Dumped`."""

    host: int
    generation: int


class Kill(NamedTuple):
    """SIGKILL the rank of that generation. Answered by `Exited`, also if it is gone already."""

    host: int
    generation: int


class Dismiss(NamedTuple):
    """Let a host go: its daemon ends."""

    host: int
    why: str


class Say(NamedTuple):
    """A line or a report for the user's log."""

    text: str
    level: int


class Finish(NamedTuple):
    """The job is done. `values` are the pickled results by rank."""

    values: tuple[bytes, ...]


class Fail(NamedTuple):
    """The job is over, with this error."""

    error: Exception


Action = (
    Probe | Reserve | Start | Propose | Commit | Dump | Kill | Dismiss | Say | Finish | Fail
)  # fmt: skip
