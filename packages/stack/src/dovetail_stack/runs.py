# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Training runs read from their directories: settings, state and metrics.

This module does not import JAX, so a list of a hundred runs takes only the time to read them.
"""

import functools
import importlib.util
import statistics
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_stack import launches, settings, states
from dovetail_stack.model_directory import EXPORT
from dovetail_stack.recipes.options import METRICS
from dovetail_stack.rewinding import left_out
from dovetail_stack.settings import Settings

EVALUATION = "eval/"  # what the names of evaluations begin with
WINDOW = 100  # steps of a mean loss and of a median rate: the last ones, or all if there are fewer
Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run.

    Attributes:
        path: Its directory.
        settings: Recipe and settings.
        state: "finished" (exported), "running", "interrupted" (stopped on request, saved),
            "failed", "killed" (no end recorded), or "unknown" (no end recorded, started on another
            machine, perhaps still running there).
        events: Starts and ends of its launches; see `launches`.
        lines: Scalars of each logged step, in order.
    """

    path: Path
    settings: Settings
    state: str
    events: Sequence[Mapping[str, Any]]
    lines: Sequence[Line]

    def __repr__(self) -> str:
        counts = f"{len(self.events)} events, {len(self.lines)} lines"
        return f"Run({str(self.path)!r}: {self.state}, {counts})"

    @property
    def launches(self) -> list[Mapping[str, Any]]:
        return [event for event in self.events if event["event"] == "start"]

    def series(self, name: str) -> dict[int, float]:
        """Returns {step: value} of a scalar, without missing values."""
        return {line["step"]: line[name] for line in self.lines if line.get(name) is not None}

    def updates(self, name: str) -> dict[int, float]:
        """Returns the series of a scalar without skipped steps."""
        skipped = {line["step"] for line in self.lines if line.get("skipped")}
        return {step: value for step, value in self.series(name).items() if step not in skipped}

    def summary(self) -> dict[str, Any]:
        """Returns the row of `dovetail runs list`. Unknown values are None.

        "step" counts updates. Over the last "window" updates, at most WINDOW, "mean_loss" is the
        mean of the losses, "tokens_per_s" the median of the rates, and "stalled" the share of
        stalls in the time of the steps. "updated" is a Unix time.
        """
        losses, rates = self.updates("loss"), _newest(self.updates("tokens_per_s"))
        return {
            "recipe": self.settings.recipe,
            "state": self.state,
            "step": max(self.series("loss"), default=-1) + 1,
            "steps": self.settings.duration.steps,
            "window": len(_newest(losses)),
            "mean_loss": statistics.fmean(_newest(losses)) if losses else None,
            "bits_per_byte": _last(self.series(EVALUATION + "bits_per_byte")),
            "tokens_per_s": statistics.median(rates) if rates else None,
            "stalled": self._stalled(),
            "goodput": _last(self.series("goodput")),
            "updated": max(file.stat().st_mtime for file in _files(self.path)),
        }

    def _stalled(self) -> float | None:
        """Returns the share of stalls in the time of the last steps."""
        steps = _newest(self.updates("step_time_s"))
        stalls = _newest(self.updates("stall_s"))
        total = sum(steps) + sum(stalls)
        return sum(stalls) / total if stalls and total else None

    def evaluations(self) -> dict[str, tuple[int, float]]:
        """Returns {name: (step, value)} of the last value of each evaluation."""
        names = {name for line in self.lines for name in line if name.startswith(EVALUATION)}
        last = {}
        for name in sorted(names):
            if series := self.series(name):
                last[name] = max(series), series[max(series)]
        return last


@dataclass(frozen=True, kw_only=True)
class Found:
    """The content of a directory.

    Attributes:
        runs: Runs by folder name.
        damaged: Error messages by folder name.
        foreign: Names of the other folders.
    """

    runs: Mapping[str, Run]
    damaged: Mapping[str, str]
    foreign: Sequence[str]


def load(path: Path) -> Run:
    """Reads a run. Raises ValueError if the directory is not a run or is damaged."""
    if not (path / settings.FILE).is_file():
        raise ValueError(
            f"a run is a directory with {settings.FILE}, got {str(path)!r}{_absence(path)}: name "
            "the --out of dovetail train; dovetail runs list DIR shows those of a directory"
        )
    events, metrics = launches.read(path), path / METRICS
    return Run(
        path=path,
        settings=settings.load(path),
        state=_state(path, events),
        events=events,
        lines=_records().read_jsonl(metrics) if metrics.is_file() else [],
    )


def _absence(path: Path) -> str:
    return "" if path.exists() else ", which does not exist"


def account(run: Run) -> dict[str, float] | None:
    """Returns the wall time of a run in seconds by activity, over all of its launches.

    It spans the first to the last line of the metrics: see `dovetail_train.read_account`. None with
    fewer than two lines.
    """
    if len(run.lines) < 2:
        return None
    times = _records().read_account(run.path / METRICS)
    names = ("step", "skipped", "repeated", "stalled", "idle", "other")
    return {name: getattr(times, f"{name}_s") for name in names}


def straggler(run: Run) -> Any:
    """Returns `dovetail_train.logs.records.Straggler`, the slowest process of the newest account.

    None if no process stood out.
    """
    return _records().read_account(run.path / METRICS).straggler if run.lines else None


def job(run: Run) -> list[states.JobLaunch]:
    """Returns the launches of a run on many hosts, with the states of each."""
    return states.read_job(run.path, alive_s=[line["time_s"] for line in run.lines])


def job_goodput(run: Run) -> float | None:
    """Returns the share of the steps that count in the wall time of the launches on many hosts.

    It counts the seconds of `account` and, other than it, the time before the first step too. None
    without such launches, without steps, or if some launch had no job on many hosts.
    """
    times = account(run)
    wall_s = sum(launch.end_s - launch.begin_s for launch in job(run))
    of_job = all("generation" in launch for launch in run.launches)
    return times["step"] / wall_s if times is not None and wall_s and of_job else None


def find(directory: Path) -> Found:
    """Reads all runs in a directory. If the directory is a run, reads that run alone.

    Raises ValueError if `directory` is not a directory.
    """
    if not directory.is_dir():
        raise ValueError(
            f"runs lie in a directory, got {str(directory)!r}{_absence(directory)}: name another"
        )
    if (directory / settings.FILE).is_file():
        entries = [directory]
    else:
        entries = sorted(entry for entry in directory.iterdir() if entry.is_dir())
    loaded, damaged, foreign = {}, {}, []
    for entry in entries:
        if not (entry / settings.FILE).is_file():
            foreign.append(entry.name)
            continue
        try:
            loaded[entry.name] = load(entry)
        except (ValueError, OSError) as error:
            damaged[entry.name] = str(error)
    return Found(runs=loaded, damaged=damaged, foreign=foreign)


def compare(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Compares runs. Each entry has one value per run, in the given order.

    "settings" and "versions" hold only the entries with differences; None stands for a missing
    value. "devices" are those of the last launch, "evaluations" the last ones. "mean_losses" are
    at common steps, each the mean over the last `window` updates up to the step.
    """
    some = list(runs.values())
    flat = [{"recipe": run.settings.recipe, **settings.flat(run.settings)} for run in some]
    versions = [run.launches[-1]["versions"] if run.launches else {} for run in some]
    losses = [_trailing_means(run.updates("loss")) for run in some]
    common = sorted(functools.reduce(lambda a, b: a & b.keys(), losses[1:], set(losses[0])))
    evaluations = [{k: v for k, (_, v) in run.evaluations().items()} for run in some]
    summaries = [run.summary() for run in some]
    devices = [run.launches[-1]["devices"] if run.launches else None for run in some]
    figures = ("state", "step", "mean_loss", "tokens_per_s", "stalled", "goodput")
    return {
        "runs": list(runs),
        "settings": _differing(flat),
        "versions": _differing(versions),
        "devices": [d and f"{d['count']} × {d['kind']}" for d in devices],
        "window": WINDOW,
        "mean_losses": {step: [series[step] for series in losses] for step in common},
        "evaluations": _side_by_side(evaluations),
        **{name: [summary[name] for summary in summaries] for name in figures},
    }


def _side_by_side(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: [table.get(name) for table in tables] for name in names}


def _differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    rows = _side_by_side(tables)
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def _state(path: Path, events: Sequence[Mapping[str, Any]]) -> str:
    if launches.is_running(path):
        return "running"
    last = events[-1] if events else None
    if last is not None and last["event"] == "end":
        return last["outcome"]
    if last is None:
        return "finished" if (path / EXPORT).is_dir() else "unknown"
    return "killed" if last["host"] == launches.host() else "unknown"


def _newest(series: Mapping[int, float]) -> list[float]:
    """Returns the values of the last WINDOW steps."""
    return [series[step] for step in sorted(series)[-WINDOW:]]


def _trailing_means(series: Mapping[int, float]) -> dict[int, float]:
    """Returns for each step the mean over the last WINDOW values up to it."""
    means, values = {}, deque[float](maxlen=WINDOW)
    for step in sorted(series):
        values.append(series[step])
        means[step] = statistics.fmean(values)
    return means


def _last(series: Mapping[int, float]) -> float | None:
    return series[max(series)] if series else None


def _files(path: Path) -> list[Path]:
    """Returns the files that grow during a run."""
    return [f for name in (settings.FILE, launches.FILE, METRICS) if (f := path / name).is_file()]


@functools.cache
def _records() -> Any:
    """Loads `dovetail_train.logs.records` from its file: the package would import JAX (1 s)."""
    package = importlib.util.find_spec("dovetail_train")
    assert package is not None
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0]) / "logs" / "records.py"
    name = "dovetail_stack._records"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def facts(run: Run) -> dict[str, str]:
    """Returns settings and versions as text, for a report."""
    last = run.launches[-1] if run.launches else {"versions": {}}
    return {
        "recipe": run.settings.recipe,
        "state": run.state,
        **{name: str(value) for name, value in settings.flat(run.settings).items()},
        **({"left out steps": left_out(run.settings)} if run.settings.leave_out else {}),
        **{f"version of {name}": value for name, value in last["versions"].items()},
    }
