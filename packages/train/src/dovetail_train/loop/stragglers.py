# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The slowest process of a run, by the account and the devices of each.

In a step the processes wait for each other, so the step takes equally long on all of them. The work
outside of it is each one's own: the devices of the slow process are idle meanwhile, and those of
the others wait in the step. Slow devices show in a short computation of each process alone. Their
cost is the time in steps, less the part of it that the devices of the others would need.
"""

import contextlib
import logging
import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from dovetail_train.loop.clock import Clock
from dovetail_train.loop.probe import Probe
from dovetail_train.mesh.processes import gather

_log = logging.getLogger(__name__)
# Activities in which a process does not wait for another one.
_OWN = ("data", "stall", "draw", "hooks")
# Wall time that a process must cost the others before it is named, and its ratio to theirs.
_LEAST_SHARE, _LEAST_RATIO = 0.1, 2.0
# Between two comparisons: half of the time since the first one, in these bounds. One takes about
# 20 ms of all processes.
_LEAST_PAUSE_S, _PAUSE_S = 1.0, 10.0
# Newest times of the devices that count; the longest is left out of the mean. On cores with a load
# of 15 each, two equal processes then differ by 2 in one of 300 comparisons, with five times in one
# of 60. A median would miss a process that is stopped for four fifths of each 100 ms.
_PROBES = 8


class Stragglers:
    """Compares all processes, about every second at first and every ten seconds later.

    Args:
        clock: The clock of this process. Its time so far does not count.
        devices: The devices of this process that train.

    Attributes:
        scalars: Those of the newest comparison: "straggler" is the index of the slowest process,
            "straggler/ACTIVITY" its seconds of its slowest activity, or of "devices", and
            "straggler/others" the median of the others. Empty if none stands out.
    """

    def __init__(self, clock: Clock, devices: Iterable[Any]) -> None:
        self._clock, self._before, self._devices = clock, clock.seconds(), devices
        self.scalars: dict[str, float] = {}
        self._waited_s = 0.0
        self._probe: Probe | None = None
        self._rounds = 0
        self._probed_s: deque[float] = deque(maxlen=_PROBES)
        self._times: list[tuple[int, float]] = []  # of the first and the newest comparisons
        self._next, self._named = 0, -1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time in the block, among hooks, as a wait for other processes."""
        begin_s = self._clock.seconds()["hooks"]
        yield
        self._waited_s += self._clock.seconds()["hooks"] - begin_s

    def is_due(self, step: int) -> bool:
        """Tests whether to compare after `step` updates: the same on all processes."""
        return step >= self._next

    def compare(self, step: int, *, last: bool = False) -> None:
        """Sets `scalars`. A collective, while no step is on its way.

        Args:
            step: Number of updates, the same on all processes.
            last: The run ends: the devices are not timed again.
        """
        seconds = {name: s - self._before[name] for name, s in self._clock.seconds().items()}
        wall_s = sum(seconds.values())
        seconds["hooks"] -= self._waited_s
        with self.waiting():
            if not last:
                self._time_devices()
            gathered = gather([seconds, list(self._probed_s), self._rounds, wall_s])
        accounts, probed, rounds, walls = zip(*gathered, strict=True)
        self._rounds, wall_s = rounds[0], walls[0]  # of process 0, for all decide alike
        self._times = [*self._times[:1], *self._times[1:][-1:], (step, wall_s)]
        self._next = step + updates_until_next(self._times)
        slowest = straggler(accounts, paces(probed))
        self.scalars = {}
        if slowest is None:
            return
        process, activity, own_s, others_s = slowest
        if process != self._named and jax.process_index() == 0:
            self._named = process
            _log.warning(
                "process %d is slower than the others, which wait for it: %.1f s of %s since the "
                "start, the others %.1f s, of %.1f s",
                *(process, own_s, "its devices" if activity == "devices" else activity),
                *(others_s, wall_s),
            )
        self.scalars = {
            "straggler": process,
            f"straggler/{activity}": own_s,
            "straggler/others": others_s,
        }

    def _time_devices(self) -> None:
        if self._probe is None:
            self._probe = Probe(self._devices)
            self._rounds = self._probe.rounds() if jax.process_index() == 0 else 0
        else:
            self._probed_s.append(self._probe.seconds(self._rounds))


def updates_until_next(times: Sequence[tuple[int, float]]) -> int:
    """Returns the number of updates until the next comparison.

    Args:
        times: Updates and wall time in seconds at each comparison so far.
    """
    if len(times) == 1:
        return 1  # its seconds have the compilation: a step's are not known
    (_, first_s), (before, before_s), (step, now_s) = times[0], times[-2], times[-1]
    pause_s = min(max((now_s - first_s) / 2, _LEAST_PAUSE_S), _PAUSE_S)
    return math.ceil(pause_s * (step - before) / max(now_s - before_s, 1e-9))


def paces(probed_s: Sequence[Sequence[float]]) -> list[float]:
    """Returns the seconds that the devices of each process take now; none if too few are known.

    Args:
        probed_s: Newest seconds of the same work, of each process.
    """
    return [statistics.fmean(sorted(s)[:-1]) for s in probed_s if len(s) == _PROBES]


def straggler(
    accounts: Sequence[Mapping[str, float]], paces_s: Sequence[float] = ()
) -> tuple[int, str, float, float] | None:
    """Returns the process that the others wait for, or None.

    Args:
        accounts: Seconds by activity of each process, two or more.
        paces_s: Seconds of the same work on the devices of each; empty if not known.

    Returns:
        Its index, its slowest activity, its seconds of that and the median of the others. Of
        "devices", these are the seconds in steps, and the part of them that the pace of the others
        would need.
    """
    own = [{name: account[name] for name in _OWN} for account in accounts]
    for row, account, pace_s in zip(own, accounts, paces_s, strict=bool(paces_s)):
        row["devices"] = account["step"] * pace_s / max(paces_s)
    cases = []
    for name in own[0]:
        for i, row in enumerate(own):
            others_s = statistics.median(a[name] for j, a in enumerate(own) if j != i)
            cases.append((i, name, row[name], others_s))
    slowest = max(cases, key=lambda case: case[2] - case[3])
    i, _, own_s, others_s = slowest
    costs = own_s - others_s >= _LEAST_SHARE * sum(accounts[i].values())
    return slowest if costs and own_s >= _LEAST_RATIO * others_s else None
