# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The slowest process of a run, by the account of each.

In a step the processes wait for each other, so the step takes equally long on all of them. The work
outside of it is each one's own: the devices of the slow process are idle meanwhile, and those of
the others wait in the step. Slow devices do not show here.
"""

import contextlib
import logging
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import jax

from dovetail_train.clock import Clock
from dovetail_train.processes import gather

_log = logging.getLogger(__name__)
# Activities in which a process does not wait for another one.
_OWN = ("data", "stall", "draw", "hooks")
# Wall time that a process must cost the others before it is named, and its ratio to theirs.
_LEAST_SHARE, _LEAST_RATIO = 0.1, 2.0
_PAUSE_S = 10.0  # between two comparisons: each takes a millisecond of all processes


class Stragglers:
    """Compares the accounts of all processes about every ten seconds.

    Args:
        clock: The clock of this process. Its time so far does not count.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._before = clock, clock.seconds()
        self._waited_s = 0.0
        self._first: int | None = None
        self._next, self._named = 0, -1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time in the block, among hooks, as a wait for other processes."""
        begin_s = self._clock.seconds()["hooks"]
        yield
        self._waited_s += self._clock.seconds()["hooks"] - begin_s

    def compare(self, step: int, *, last: bool = False) -> dict[str, float]:
        """Returns the scalars of the slowest process, if one is. A collective.

        Args:
            step: Number of updates, the same on all processes.
            last: The run ends.

        Returns:
            "straggler": its index. "straggler/ACTIVITY" and "straggler/others": seconds of its
            slowest activity, and the median of the others. Empty if none stands out.
        """
        self._first = step if self._first is None else self._first
        if step < self._next and not last:
            return {}
        seconds = {name: s - self._before[name] for name, s in self._clock.seconds().items()}
        seconds["hooks"] -= self._waited_s
        accounts = gather(seconds)
        wall_s = sum(accounts[0].values())  # those of process 0, for all decide alike
        self._next = step + math.ceil(_PAUSE_S * max(1, step - self._first) / max(wall_s, 1e-9))
        slowest = straggler(accounts)
        if slowest is None:
            return {}
        process, activity, own_s, others_s = slowest
        if process != self._named and jax.process_index() == 0:
            self._named = process
            _log.warning(
                "process %d is slower than the others, which wait for it: %.1f s of %s since the "
                "start, the others %.1f s, of %.1f s",
                *(process, own_s, activity, others_s, wall_s),
            )
        return {"straggler": process, f"straggler/{activity}": own_s, "straggler/others": others_s}


def straggler(accounts: Sequence[Mapping[str, float]]) -> tuple[int, str, float, float] | None:
    """Returns the process that the others wait for, or None.

    Args:
        accounts: Seconds by activity of each process, two or more.

    Returns:
        Its index, its slowest activity, its seconds of that and the median of the others.
    """
    cases = []
    for name in _OWN:
        for i, account in enumerate(accounts):
            others_s = statistics.median(a[name] for j, a in enumerate(accounts) if j != i)
            cases.append((i, name, account[name], others_s))
    slowest = max(cases, key=lambda case: case[2] - case[3])
    i, _, own_s, others_s = slowest
    costs = own_s - others_s >= _LEAST_SHARE * sum(accounts[i].values())
    return slowest if costs and own_s >= _LEAST_RATIO * others_s else None
