# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The agreed stop: all ranks stop at the same question, or none does.

A rank asks `Context.stop` again and again, and its questions are counted. The controller proposes
a question ahead of all ranks. A rank that accepts will wait there. If all accept, the stop is
committed, and each rank gets True at that question. If a rank has already passed it, nothing has
happened yet, and a later question is proposed; waiting ranks go on to it.

Questions are counted instead of steps because a loop may ask several times in a step.
"""

from __future__ import annotations

from collections.abc import Iterable

NEVER = 2**62  # a question that no rank reaches: proposing it withdraws the stop


class AgreedStop:
    """The state of one agreed stop.

    Args:
        hosts: The hosts of the generation.

    Attributes:
        question: The proposed question, None before the first proposal.
        committed: All ranks have accepted; they stop there.
        withdrawn: The stop is given up; the ranks go on.
    """

    def __init__(self, hosts: Iterable[int]):
        self.question: int | None = None
        self.committed = self.withdrawn = False
        self._hosts = tuple(hosts)
        self._missing: set[int] = set(self._hosts)
        self._refused = False
        self._margin = 1  # small, since a step may take minutes

    @property
    def settled(self) -> bool:
        """True if nothing more is to be proposed."""
        return self.committed or self.withdrawn

    @property
    def due(self) -> bool:
        """True if a question must be proposed: the first, or a later one after a refusal."""
        return not self.settled and (self.question is None or self._refused)

    @property
    def agreed(self) -> bool:
        """True if all ranks have accepted the question."""
        return not self.settled and self.question is not None and not self._missing

    def propose(self, asked: int) -> int:
        """Returns a question ahead of all ranks, if none has asked more than `asked`."""
        self.question = max(asked, -1 if self.question is None else self.question) + self._margin
        self._margin *= 2  # a fast loop asks many questions while a message travels
        self._missing, self._refused = set(self._hosts), False
        return self.question

    def answer(self, host: int, question: int, accepted: bool) -> None:
        """Notes an answer. Answers to earlier proposals do not count.

        Args:
            host: The host of the rank.
            question: The proposed question.
            accepted: Whether the rank will wait there.
        """
        if question != self.question:
            return
        if accepted:
            self._missing.discard(host)
        else:
            self._refused = True

    def commit(self) -> int:
        """Commits the stop and returns its question."""
        assert self.question is not None
        self.committed = True
        return self.question

    def withdraw(self) -> int | None:
        """Gives up. Returns the question to propose for it, None if none was proposed before."""
        self.withdrawn = True
        return None if self.question is None else NEVER
