# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Plans of faults: their kinds, hosts and steps, chosen by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

KINDS = ("kill", "kill_daemon", "stop", "stall", "notice", "raise", "remove")

# The share of steps that faults may follow: after the last ones a run may end before its fault.
_SHARE = 0.75


class Fault(NamedTuple):
    """A fault to inject.

    Attributes:
        number: Its number in the plan, from 0.
        kind: One of `KINDS`.
        host: The host that it strikes.
        step: It strikes when a rank has completed this step or a later one.
    """

    number: int
    kind: str
    host: int
    step: int

    def __str__(self) -> str:
        return f"fault {self.number} ({self.kind} of host {self.host} after step {self.step})"


def plan_faults(steps: Sequence[int], *, hosts: int, faults: int, seed: int) -> list[Fault]:
    """Chooses faults: kinds in turn, in a random order, on random hosts, after random steps.

    Args:
        steps: The steps that the function reports, rising.
        hosts: Number of hosts.
        faults: Number of faults.
        seed: Equal seeds give equal plans.

    Returns:
        The faults in the order of their steps, which differ.

    Raises:
        ValueError: There are too few steps.
    """
    usable = list(steps)[: int(len(steps) * _SHARE)]
    if len(usable) < faults:
        raise ValueError(
            f"the function must report more than {faults / _SHARE:.0f} steps for faults={faults}, "
            f"got {len(steps)}; let it train longer, or write faults={max(len(usable), 1)}"
        )
    rng = random.Random(seed)
    kinds: list[str] = []
    while len(kinds) < faults:
        kinds += rng.sample(KINDS, len(KINDS))
    after = sorted(rng.sample(usable, faults))
    return [Fault(i, kinds[i], rng.randrange(hosts), step) for i, step in enumerate(after)]
