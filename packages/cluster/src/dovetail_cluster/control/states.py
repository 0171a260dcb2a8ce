# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The states of a job over time. They cover the wall time without gap or overlap."""

from __future__ import annotations

from typing import Literal

State = Literal[
    "waiting",  # for hosts
    "starting",  # from the choice of hosts until every rank was heard
    "running",
    "draining",  # towards an agreed stop
    "stuck",  # from the last progress until the ranks are killed
    "restarting",  # from a failure until the next choice of hosts
    "suspended",  # by a resize to 0
    "done",
    "failed",
]


class Timeline:
    """A sequence of states with their begin and end, in seconds of the clock of the caller."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, float, float]] = []

    @property
    def spans(self) -> list[tuple[str, float, float]]:
        """Triples (state, begin, end) in order, each beginning at the end of the one before."""
        return [span for span in self._spans if span[2] > span[1]]

    @property
    def state(self) -> str:
        """The present state, "waiting" before the first."""
        return self._spans[-1][0] if self._spans else "waiting"

    @property
    def since(self) -> float:
        """When the present state began, 0 before the first."""
        return self._spans[-1][1] if self._spans else 0.0

    def advance(self, now: float) -> None:
        """Extends the present state to `now`. Before the first state comes "waiting"."""
        if not self._spans:
            self._spans.append(("waiting", now, now))
        state, begin, end = self._spans[-1]
        if state not in ("done", "failed"):
            self._spans[-1] = (state, begin, max(end, now))

    def enter(self, state: State, now: float, *, since: float | None = None) -> None:
        """Begins a state, unless it is the present one.

        Args:
            state: The new state.
            now: The present time.
            since: When the state began in truth. It can only shorten the present state.
        """
        self.advance(now)
        present, begin, _ = self._spans[-1]
        if state == present:
            return
        at = now if since is None else min(max(since, begin), now)
        self._spans[-1] = (present, begin, at)
        self._spans.append((state, at, now))

    def seconds(self) -> dict[str, float]:
        """Seconds in each state so far, {"running": 12.5}."""
        totals: dict[str, float] = {}
        for state, begin, end in self.spans:
            totals[state] = totals.get(state, 0.0) + end - begin
        return totals
