# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""When a job starts again after a failure, and when it ends with an error.

A failure has one cause, its origin, decided after all its ranks are gone. The fault of one rank
shows on the others too: as exceptions about a broken connection, and as SIGABRT by JAX. In order:

1. "crash": a host was lost.
2. "stall": no progress.
3. "exception": the user's function raised. An exception about another rank is a consequence.
4. "crash": a rank exited without a result, else it was killed by a signal, else all exceptions
   are broken connections. The network may come back, so the same one twice does not end the job.

Each cause has a budget of restarts. A completed step later than all before fills the budgets again.
The same exception at the same step in two failures in a row ends the job at once, and so does one
with a true attribute `final`, or a full disk: a restart would repeat steps, and fail at the save.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from typing import Literal

from dovetail_cluster.elastic import Elastic
from dovetail_cluster.errors import JobError, RankError, StallError
from dovetail_cluster.events import Raised

Cause = Literal["crash", "stall", "exception"]

# Broken connections. A wrong collective breaks with other words on the rank that finds it.
_WRONG = re.compile(r"op\.preamble")
_BROKEN = re.compile(
    r"\bGloo\b.*(connect|timed out|timeout)|connection (reset|closed) by peer",
    re.IGNORECASE | re.DOTALL,
)
_OF_JAX = ("JaxRuntimeError", "XlaRuntimeError")
_BROKEN_IN_JAX = re.compile(
    r"nccl|heartbeat|barrier|coordination service|UNAVAILABLE|DEADLINE_EXCEEDED",
    re.IGNORECASE,
)
# The process whose fault an exception of another one tells, as errors of a store name it.
_OF_PROCESS = re.compile(r"\bprocess=(\d+)")
_FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|File too large")


@dataclasses.dataclass(frozen=True)
class Failing:
    """An exception of a rank.

    Attributes:
        rank: The rank.
        step: Its last completed step, None before the first.
        raised: The message about it.
    """

    rank: int
    step: int | None
    raised: Raised

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Equal for the same exception at the same step."""
        return (*self.own, self.step)

    @property
    def own(self) -> tuple[str, str]:
        """Kind and message of the exception.

        If a connection broke while another exception was on its way, they are that one's: a
        clean-up that asked the other ranks came after it.
        """
        broken = [i for i, each in enumerate(self._chain) if _is_broken(*each)]
        return self._chain[broken[-1] + 1] if broken and self.is_own else self._chain[0]

    @property
    def broken(self) -> bool:
        """True if a connection to another rank broke, by the message of JAX's collectives."""
        return any(_is_broken(*each) for each in self._chain)

    @property
    def is_own(self) -> bool:
        """True if the rank's own exception was before any broken connection."""
        return not _is_broken(*self._chain[-1])

    @property
    def is_full_disk(self) -> bool:
        """True if a file could not grow."""
        return any(_FULL_DISK.search(message) for _, message in self._chain)

    def tells(self, others: set[int]) -> bool:
        """True if it is about the fault of another process, one of those ranks."""
        cited = {int(number) for number in _OF_PROCESS.findall(self.raised.message)}
        return bool(cited & (others - {self.rank}))

    @property
    def _chain(self) -> list[tuple[str, str]]:
        return [(self.raised.kind, self.raised.message), *self.raised.before]


def _is_broken(kind: str, message: str) -> bool:
    if _WRONG.search(message):
        return False
    in_jax = kind in _OF_JAX and _BROKEN_IN_JAX.search(message)
    return bool(in_jax or _BROKEN.search(message))


@dataclasses.dataclass
class Failure:
    """The reasons for the end of a generation.

    Attributes:
        generation: Its number.
        lost: Lost hosts: (name of the rank and its host, reason).
        exits: Ranks with neither result nor kill: (name, exit code).
        raised: Exceptions, in the order of their arrival.
        report: The report of a stall, None for no stall.
        planned: The ranks were killed because an agreed stop took too long. This is no fault.
        port_taken: The first rank could not listen at its address.
    """

    generation: int
    lost: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    exits: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    raised: list[Failing] = dataclasses.field(default_factory=list)
    report: str | None = None
    planned: bool = False
    port_taken: bool = False

    @property
    def first(self) -> Failing:
        """The exception that was first, by its origin; there must be one.

        The last are those that a connection broke, or that tell the fault of another rank that
        raised.
        """
        ranks = {failing.rank for failing in self.raised}

        def lateness(failing: Failing) -> int:
            return 2 * (not failing.is_own or failing.tells(ranks)) + failing.broken

        return min(self.raised, key=lateness)  # the first that came, of equals

    @property
    def deaths(self) -> list[str]:
        """Lost hosts, else ranks with an exit code, else ranks with a signal, in words.

        Without SIGABRT, by which JAX ends a rank because of another's death.
        """
        if self.lost:
            return [f"{name} was lost: {why}" for name, why in self.lost]
        ended = [each for each in self.exits if each[1] != -signal.SIGABRT]
        by_code = [each for each in ended if each[1] >= 0]
        return [f"{name} {ending(code)}" for name, code in by_code or ended]

    @property
    def plain(self) -> bool:
        """True if its origin is known. JAX aborts a rank (SIGABRT) because of another's death."""
        return bool(self.lost) or any(code < 0 for _, code in self.exits if code != -signal.SIGABRT)

    @property
    def cause(self) -> Cause:
        """The one cause; see the module."""
        if self.report is not None and not self.deaths:
            return "stall"
        if self.lost or self.report is not None or not self.raised or not self.first.is_own:
            return "crash"
        return "crash" if self.first.broken and self.deaths else "exception"

    def __str__(self) -> str:
        if self.cause == "stall" and self.report is not None:
            return self.report.splitlines()[0]
        if self.raised and (self.cause == "exception" or not self.deaths):
            kind, message = self.first.own
            return f"rank {self.first.rank} raised {kind}: {message}"
        return "; ".join(self.deaths or [f"{name} {ending(code)}" for name, code in self.exits])


def ending(code: int) -> str:
    """Returns an exit code in words."""
    if code >= 0:
        return f"exited with code {code} without a result"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


class Policy:
    """Counts the failures of a job against its budgets."""

    def __init__(self, elastic: Elastic):
        self._elastic = elastic
        self._used: dict[str, int] = {}
        self._latest_step: int | None = None
        self._raised_before: list[Failing] = []

    def completed(self, step: int) -> None:
        """Notes a completed step. If it is later than all before, it fills the budgets."""
        if self._latest_step is None or step > self._latest_step:
            self._latest_step = step
            self._used.clear()

    def decide(self, failure: Failure) -> JobError | None:
        """Counts a failure. Returns the error for the end of the job, None for a restart."""
        cause = failure.cause
        before = {failing.key for failing in self._raised_before}
        self._raised_before = failure.raised if cause == "exception" else []
        if cause == "exception" and failure.first.raised.final:
            return _rank_error(failure.first, "which another start would raise again")
        if cause == "exception" and failure.first.is_full_disk:
            return _rank_error(failure.first, "which no restart mends: free space on its disk")
        for failing in self._raised_before:
            if failing.key in before and not failing.broken:
                return _rank_error(failing, "the same exception as in the generation before")
        self._used[cause] = self._used.get(cause, 0) + 1
        budget = self._elastic.restarts(cause)
        if self._used[cause] <= budget:
            return None
        if cause == "exception":
            return _rank_error(failure.first, f"its budget of {budget} restarts is used up")
        rule = (
            f"a job may restart {budget} times after a {cause} without a step later than all "
            f"before, and this was failure {self._used[cause]}"
        )
        advice = f"write budget={{{cause!r}: {2 * budget + 1}}} for more"
        if cause == "stall":
            return StallError(f"{rule}; {advice}\n{failure.report}")
        texts = [f"\nrank {f.rank} raised:\n{f.raised.text}" for f in failure.raised]
        return JobError("".join([f"{rule}: {failure}; {advice}", *texts]))

    def restarts_left(self, cause: str) -> int:
        """Remaining restarts of a cause."""
        return self._elastic.restarts(cause) - self._used.get(cause, 0)


def _rank_error(failing: Failing, why: str) -> RankError:
    raised, (kind, message) = failing.raised, failing.own
    place = "before its first step" if failing.step is None else f"after step {failing.step}"
    return RankError(
        f"rank {failing.rank} raised {kind} {place} in generation {raised.generation}, "
        f"{why}: {message}\n{raised.text}",
        rank=failing.rank,
        generation=raised.generation,
    )
