# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""When a job starts again after a failure, and when it ends with an error.

A failure has one cause, decided after all its ranks are gone, because the death of one rank shows
as exceptions in the others:

1. "crash": a host was lost, or a rank was killed by a signal.
2. "stall": no progress.
3. "exception": the user's function raised.
4. "crash" again: a rank exited without a result, or all exceptions are broken connections between
   ranks. The network may come back, so the same one twice does not end the job.

Each cause has a budget of restarts. A completed step later than all before fills the budgets again.
The same exception at the same step in two failures in a row ends the job at once.
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

# A wrong collective breaks with other words on the rank that finds it, such as "op.preamble".
_BROKEN = re.compile(r"\bGloo\b.*(connect|timed out|timeout)", re.IGNORECASE | re.DOTALL)


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
        return self.raised.kind, self.raised.message, self.step

    @property
    def broken(self) -> bool:
        """True if a connection to another rank broke, by the message of JAX's collectives."""
        return _BROKEN.search(self.raised.message) is not None


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
    def crashed(self) -> bool:
        """True if a host was lost, or a rank was killed by a signal."""
        return bool(self.lost) or any(code < 0 for _, code in self.exits)

    @property
    def plain(self) -> bool:
        """True if its origin is known. JAX aborts a rank (SIGABRT) because of another's death."""
        return bool(self.lost) or any(code < 0 for _, code in self.exits if code != -signal.SIGABRT)

    @property
    def cause(self) -> Cause:
        """The one cause; see the module."""
        if self.crashed:
            return "crash"
        if self.report is not None:
            return "stall"
        return "crash" if all(failing.broken for failing in self.raised) else "exception"

    def __str__(self) -> str:
        if self.crashed or not (self.raised or self.report):
            lost = [f"{name} was lost: {why}" for name, why in self.lost]
            return "; ".join([*lost, *(f"{name} {ending(code)}" for name, code in self.exits)])
        if self.report is not None:
            return self.report.splitlines()[0]
        first = self.raised[0]
        return f"rank {first.rank} raised {first.raised.kind}: {first.raised.message}"


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
        for failing in self._raised_before:
            if failing.key in before:
                return _rank_error(failing, "the same exception as in the generation before")
        self._used[cause] = self._used.get(cause, 0) + 1
        budget = self._elastic.restarts(cause)
        if self._used[cause] <= budget:
            return None
        if cause == "exception":
            return _rank_error(failure.raised[0], f"its budget of {budget} restarts is used up")
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
    raised = failing.raised
    place = "before its first step" if failing.step is None else f"after step {failing.step}"
    return RankError(
        f"rank {failing.rank} raised {raised.kind} {place} in generation {raised.generation}, "
        f"{why}: {raised.message}\n{raised.text}",
        rank=failing.rank,
        generation=raised.generation,
    )
