# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The state of simulated hosts and of the processes on them; see `simulated`."""

from __future__ import annotations

import dataclasses

from dovetail_cluster import events


@dataclasses.dataclass
class Process:
    """The process of a rank."""

    start: events.Start
    alive: bool = True
    paused: bool = False  # SIGSTOP
    hung: bool = False  # only its training
    step: int | None = None  # the last completed one
    next_step: int = 0
    asked: int = 0
    waits: int | None = None  # at this question
    proposed: int | None = None
    committed: int | None = None
    arrived: bool = False  # at the collective of its step
    returned: bool | None = None
    stopped_at: int | None = None
    known_gone: bool = False


class Daemon:
    """A host with its daemon. `sick` is the answer to its next probes."""

    def __init__(self, number: int):
        self.number = number
        self.sick: str | None = None
        self.answers_probes = True
        self.present = True
        self.noticed = False
        self.process: Process | None = None
        self.up_at = self.down_at = 0.0  # when the last message arrives, in each direction
