# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Training runs as their directories tell them: what they were asked, how far they are, how good.

Nothing here imports JAX, so a look at a hundred runs takes no longer than reading their files.
"""

import functools
import importlib.util
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_stack import launches, settings
from dovetail_stack.commands.generate import EXPORT
from dovetail_stack.settings import Settings

METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"
EVALUATION = "eval/"  # what the names of evaluations begin with
Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. lines: a dict of scalars per step, in order; events: see `launches`.

    state: finished (exported), running, interrupted (asked to stop, saved), failed, killed (ended
    without a word), or unknown (so, but begun on another machine, where it may be running).
    """

    path: Path
    settings: Settings
    state: str
    events: Sequence[Mapping[str, Any]]
    lines: Sequence[Line]

    @property
    def launches(self) -> list[Mapping[str, Any]]:
        return [event for event in self.events if event["event"] == "start"]

    def series(self, name: str) -> dict[int, float]:
        """{step: value} where a scalar was written as a number."""
        return {line["step"]: line[name] for line in self.lines if line.get(name) is not None}

    def summary(self) -> dict[str, Any]:
        """The figures of a row of `dovetail runs list`; None for what is not known.

        step: updates made. tokens_per_s: the median over the steps. updated: Unix time.
        """
        losses, rates = self.series("loss"), self.series("tokens_per_s")
        return {
            "recipe": self.settings.recipe,
            "state": self.state,
            "step": max(losses, default=-1) + 1,
            "steps": self.settings.duration.steps,
            "loss": _last(losses),
            "bits_per_byte": _last(self.series(EVALUATION + "bits_per_byte")),
            "tokens_per_s": statistics.median(rates.values()) if rates else None,
            "goodput": _last(self.series("goodput")),
            "updated": max(file.stat().st_mtime for file in _files(self.path)),
        }

    def evaluations(self) -> dict[str, tuple[int, float]]:
        """{name: (step, value)} of the last time of each."""
        names = {name for line in self.lines for name in line if name.startswith(EVALUATION)}
        found = {}
        for name in sorted(names):
            if series := self.series(name):
                found[name] = max(series), series[max(series)]
        return found


@dataclass(frozen=True, kw_only=True)
class Found:
    """What lies in a directory: runs, damaged ones and what is wrong, names of other folders."""

    runs: Mapping[str, Run]
    damaged: Mapping[str, str]
    foreign: Sequence[str]


def load(path: Path) -> Run:
    """The run in a directory; ValueError where there is none, or one that cannot be read."""
    if not (path / settings.FILE).is_file():
        raise ValueError(
            f"a run is a directory with {settings.FILE}, got {str(path)!r}: name what dovetail "
            "train was given as --out"
        )
    events, metrics = launches.read(path), path / METRICS
    return Run(
        path=path,
        settings=settings.load(path),
        state=_state(path, events),
        events=events,
        lines=_records().read_jsonl(metrics) if metrics.is_file() else [],
    )


def account(run: Run) -> dict[str, float] | None:
    """{what: seconds} of the wall time between the first and the last line of a run's metrics, over
    all of its launches: `dovetail_train.read_account`. None without two of them."""
    if len(run.lines) < 2:
        return None
    found = _records().read_account(run.path / METRICS)
    names = ("step", "skipped", "repeated", "idle", "other")
    return {name: getattr(found, f"{name}_s") for name in names}


def find(directory: Path) -> Found:
    """The runs in a directory, by name; of a directory that is a run itself, that one.

    Raises ValueError for what is no directory.
    """
    if not directory.is_dir():
        raise ValueError(f"runs lie in a directory, got {str(directory)!r}: name one that exists")
    if (directory / settings.FILE).is_file():
        entries = [directory]
    else:
        entries = sorted(entry for entry in directory.iterdir() if entry.is_dir())
    found, damaged, foreign = {}, {}, []
    for entry in entries:
        if not (entry / settings.FILE).is_file():
            foreign.append(entry.name)
            continue
        try:
            found[entry.name] = load(entry)
        except (ValueError, OSError) as error:
            damaged[entry.name] = str(error)
    return Found(runs=found, damaged=damaged, foreign=foreign)


def compare(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What differs between runs, side by side, a value for each run in the order given.

    settings, versions: {name: values} of those that differ, None where a run has no such. devices:
    of the last start. losses: {step: values} of the steps that all have. evaluations: {name:
    values} of the last ones.
    """
    some = list(runs.values())
    flat = [{"recipe": run.settings.recipe, **settings.flat(run.settings)} for run in some]
    versions = [run.launches[-1]["versions"] if run.launches else {} for run in some]
    losses = [run.series("loss") for run in some]
    common = sorted(functools.reduce(lambda a, b: a & b.keys(), losses[1:], set(losses[0])))
    evaluations = [{k: v for k, (_, v) in run.evaluations().items()} for run in some]
    summaries = [run.summary() for run in some]
    devices = [run.launches[-1]["devices"] if run.launches else None for run in some]
    figures = ("state", "step", "loss", "tokens_per_s", "goodput")
    return {
        "runs": list(runs),
        "settings": _differing(flat),
        "versions": _differing(versions),
        "devices": [d and f"{d['count']} × {d['kind']}" for d in devices],
        "losses": {step: [series[step] for series in losses] for step in common},
        "evaluations": _side_by_side(evaluations),
        **{name: [summary[name] for summary in summaries] for name in figures},
    }


def never_trained(path: Path) -> bool:
    """Whether every launch of a run failed before its first step; not while one is running."""
    ends = [event for event in launches.read(path) if event["event"] == "end"]
    begun = [event for event in launches.read(path) if event["event"] == "start"]
    if len(ends) < len(begun) or any(end["outcome"] != "failed" for end in ends):
        return False
    made = [path / METRICS, *(path / CHECKPOINTS).glob("[0-9]*")]
    return not any(file.exists() for file in made) and not launches.is_running(path)


def clear(path: Path) -> None:
    """Removes the corpora and the tokenizer of a run that never made a step."""
    for name in ("train", "held_out"):
        shutil.rmtree(path / name, ignore_errors=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink(missing_ok=True)


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


def _last(series: Mapping[int, float]) -> float | None:
    return series[max(series)] if series else None


def _files(path: Path) -> list[Path]:
    """Those that change as a run goes on."""
    return [f for name in (settings.FILE, launches.FILE, METRICS) if (f := path / name).is_file()]


@functools.cache
def _records() -> Any:
    """`dovetail_train.records`, from its file: importing the package would import JAX, 1 s."""
    package = importlib.util.find_spec("dovetail_train")
    assert package is not None
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0]) / "records.py"
    name = "dovetail_stack._records"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def facts(run: Run) -> dict[str, str]:
    """What a report says of a run beside its curves."""
    last = run.launches[-1] if run.launches else {"versions": {}}
    return {
        "recipe": run.settings.recipe,
        "state": run.state,
        **{name: str(value) for name, value in settings.flat(run.settings).items()},
        **{f"version of {name}": value for name, value in last["versions"].items()},
    }
