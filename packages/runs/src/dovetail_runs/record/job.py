# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`job.jsonl`: the states of a job on many hosts, and its log, launch by launch.

The command that drives the hosts writes each change at once, so a killed command leaves all but its
end.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail_runs.events import append, read

FILE = "job.jsonl"
# In the order of a table, with their signs in a bar.
SIGNS = {
    "running": "█",
    "draining": "▓",
    "starting": "▒",
    "restarting": "░",
    "stuck": "!",
    "waiting": ".",
    "suspended": "-",
}
_ENDED = ("done", "failed")


@dataclass(kw_only=True)
class JobLaunch:
    """One command that drove the hosts.

    Attributes:
        begin_s: Its begin, in Unix time.
        hosts: Numbers of hosts that it allowed.
        spans: Triples (state, begin, end) in order, in Unix time.
        log: Pairs (Unix time, text) of restarts, resizes and reports.
        outcome: "finished", "interrupted" or "failed"; None without a recorded end.
    """

    begin_s: float
    hosts: Sequence[int] = ()
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    log: list[tuple[float, str]] = field(default_factory=list)
    outcome: str | None = None

    @property
    def end_s(self) -> float:
        return self.spans[-1][2] if self.spans else self.begin_s

    def bar(self, width: int = 60) -> str:
        """Returns the states over time as `width` signs: each has the longest state of its part."""
        total = self.end_s - self.begin_s
        if total <= 0:
            return ""
        edges = [self.begin_s + total * i / width for i in range(width + 1)]
        signs = []
        for left, right in itertools.pairwise(edges):
            shares = seconds([_cut(span, left, right) for span in self.spans])
            signs.append(SIGNS[max(shares, key=shares.__getitem__)] if shares else " ")
        return "".join(signs)

    def json(self) -> dict[str, Any]:
        """Returns the launch as JSON values."""
        return {**vars(self), "end_s": self.end_s}


class Recorder(logging.Handler):
    """Writes the states of a job, and what the cluster logs, to the run.

    Args:
        run: Folder of the run.
        hosts: Numbers of hosts that the job allows.
    """

    def __init__(self, run: Path, hosts: Sequence[int]) -> None:
        super().__init__(logging.INFO)
        self._file = run / FILE
        self._write("begin", time.time(), hosts=list(hosts))

    def enter(self, state: str, since_s: float) -> None:
        """Writes a change of the state.

        Args:
            state: The new state.
            since_s: Its begin, in seconds of `time.monotonic()`.
        """
        self._write("state", time.time() - time.monotonic() + since_s, state=state)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a message of the cluster."""
        with contextlib.suppress(OSError):  # a full disk must not end the job
            self._write("log", record.created, text=record.getMessage())

    def end(self, outcome: str) -> None:
        """Writes the end of the launch."""
        self._write("end", time.time(), outcome=outcome)

    def _write(self, event: str, time_s: float, **values: Any) -> None:
        append(self._file, {"event": event, "time": time_s, **values})


@contextlib.contextmanager
def recorded(run: Path, hosts: Sequence[int], *, logger: str) -> Iterator[Recorder]:
    """Records a launch. Call `end` inside, unless the block raises.

    Args:
        run: Folder of the run.
        hosts: Numbers of hosts that the job allows.
        logger: Name of the logger whose messages are kept, such as "dovetail_cluster".
    """
    log, recorder = logging.getLogger(logger), Recorder(run, hosts)
    level = log.level
    log.addHandler(recorder)
    log.setLevel(logging.INFO)  # starts, restarts and resizes are few
    try:
        yield recorder
    except BaseException:
        with contextlib.suppress(OSError):  # the error under way says more
            recorder.end("failed")
        raise
    finally:
        log.setLevel(level)
        log.removeHandler(recorder)


def read_job(run: Path, *, alive_s: Sequence[float] = ()) -> list[JobLaunch]:
    """Returns the launches of a job in order; none if the run never had many hosts.

    Args:
        run: Folder of the run.
        alive_s: Unix times at which the run is known to have worked, such as those of its metrics.
            A launch without a recorded end has lasted until the last of them.
    """
    events, _ = read(run / FILE, unix=True)
    begins = [i for i, event in enumerate(events) if event["event"] == "begin"]
    launches = []
    for first, after in itertools.pairwise([*begins, len(events)]):
        until_s = events[after]["time"] if after < len(events) else float("inf")
        last_s = max((t for t in alive_s if t < until_s), default=0.0)
        launches.append(_launch(events[first:after], last_s))
    return launches


def seconds(spans: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """Returns the seconds in each state, in the order of `SIGNS`."""
    totals = {
        state: sum(end - begin for name, begin, end in spans if name == state) for state in SIGNS
    }
    return {state: total for state, total in totals.items() if total > 0}


def _launch(events: Sequence[dict[str, Any]], last_s: float) -> JobLaunch:
    launch = JobLaunch(begin_s=events[0]["time"], hosts=tuple(events[0].get("hosts", ())))
    changes = [(event["state"], event["time"]) for event in events if event["event"] == "state"]
    launch.log = [(event["time"], event["text"]) for event in events if event["event"] == "log"]
    ends = [event for event in events if event["event"] == "end"]
    launch.outcome = ends[-1]["outcome"] if ends else None
    last_s = max(events[-1]["time"], last_s if not ends else 0.0)
    # Before its first state the command reads settings and starts daemons.
    changes = [("waiting", launch.begin_s), *changes]
    for (state, begin), (_, end) in zip(changes, [*changes[1:], ("", last_s)], strict=True):
        if state not in _ENDED and end > begin:
            launch.spans.append((state, begin, end))
    return launch


def _cut(span: tuple[str, float, float], left: float, right: float) -> tuple[str, float, float]:
    state, begin, end = span
    begin = min(max(begin, left), right)
    return state, begin, max(min(end, right), begin)
