# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reactions of a job to failures: allowed numbers of hosts, deadlines and budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dovetail_cluster import _elsewhere

CAUSES = ("crash", "stall", "exception")


@_elsewhere.elastic
@dataclasses.dataclass(frozen=True, kw_only=True)
class Elastic:
    """Reactions of a job to failures.

    Args:
        hosts: Allowed numbers of hosts. The job takes the largest that the healthy hosts fill, and
            keeps the others as warm spares. Default: all hosts of the cluster, no fewer.
        stall_s: Seconds without a completed step, on any rank, after which the job counts as stuck.
            After half of them a rank that the others wait for before the first step is told.
        first_step_s: The same before the first step of a generation, which compiles, and in a
            phase without a deadline of its own, such as a save; see `Context.phase`.
        drain_s: Seconds for an agreed stop, after which the ranks are killed.
        wait_s: Seconds to wait for enough hosts.
        budget: Restarts for each cause, "crash", "stall" or "exception", after which the job fails.
            A completed step later than all before fills the budget again. Causes that are left
            out keep their default. An exception with a true attribute `final`, or about a full
            disk, ends the job at once.
        probe: Called on each host in a process of its own before the host is used; an exception
            leaves the host out. Default: each device computes, and copies to the next one.
        notice: Called on each host about once a second; True announces that the host will be taken
            away, as SIGTERM at its daemon does.

    Raises:
        ValueError: A number is out of range, or a cause is unknown.
    """

    hosts: tuple[int, ...] | None = None
    stall_s: float = 120.0
    first_step_s: float = 1800.0
    drain_s: float = 300.0
    wait_s: float = 600.0
    budget: Mapping[str, int] = dataclasses.field(default_factory=dict)
    probe: Callable[[], Any] | None = None
    notice: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        if self.hosts is not None and (not self.hosts or min(self.hosts) < 1):
            raise ValueError(
                f"hosts are the allowed numbers of hosts, each at least 1, got {self.hosts}; write "
                f"hosts=(2, 3)"
            )
        for name in ("stall_s", "first_step_s", "drain_s", "wait_s"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} is a number of seconds above 0, got {getattr(self, name)}; write "
                    f"{name}=60.0"
                )
        unknown = set(self.budget) - set(CAUSES)
        if unknown or any(count < 0 for count in self.budget.values()):
            raise ValueError(
                f"a budget has restarts, at least 0, for causes among {', '.join(CAUSES)}, got "
                f"{dict(self.budget)}; write budget={{'crash': 5}}"
            )

    def restarts(self, cause: str) -> int:
        """Restarts that a cause may take without progress between them."""
        return self.budget.get(cause, {"crash": 5, "stall": 3, "exception": 1}[cause])
