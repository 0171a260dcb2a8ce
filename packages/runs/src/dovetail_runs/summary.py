# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A run in one row: state, progress, loss and speed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_runs.metrics.account import account_of
from dovetail_runs.metrics.metrics import Curve, Metrics
from dovetail_runs.record import launch, notes
from dovetail_runs.run import METRICS, SETTINGS, Run
from dovetail_runs.settings import flat

WINDOW = 100  # updates of a mean loss and of a median rate: the last ones, or all if fewer
EVALUATION = "eval/"  # what the names of evaluations begin with


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in one row. Unknown values are None.

    Attributes:
        recipe: Name of the kind of run.
        state: See `Run.state`.
        tags: Its tags.
        step: Number of updates.
        steps: Planned number of updates: the setting `steps`.
        window: Number of updates for the next three: the last 100, or all if there are fewer.
        mean_loss: Mean of the finite losses.
        tokens_per_s: Median of the rates.
        stalled: Share of stalls in the time of the steps.
        goodput: Share of the run's own steps in the wall time, as the loop logged it last; without
            that, as `Run.account` has it.
        evaluations: Last step and value of each evaluation, by name.
        damaged: Number of lines that could not be read: see `Run.damage`.
        updated: Unix time of the last change of its files.
    """

    recipe: str | None
    state: str
    tags: tuple[str, ...]
    step: int
    steps: int | None
    window: int
    mean_loss: float | None
    tokens_per_s: float | None
    stalled: float | None
    goodput: float | None
    evaluations: Mapping[str, tuple[int, float]]
    damaged: int
    updated: float


def summary(run: Run | str | Path) -> Summary:
    """Returns a run in one row, also of its folder. ValueError if it is no run, or is damaged."""
    run = run if isinstance(run, Run) else Run(run)
    metrics = run.metrics
    steps = [v for k, v in flat(run.settings).items() if k.rpartition(".")[2] == "steps"]
    return Summary(
        recipe=run.recipe,
        state=run.state,
        tags=tuple(run.tags),
        steps=steps[0] if len(steps) == 1 and isinstance(steps[0], int) else None,
        **figures(metrics),
        damaged=metrics.damaged + len(run.damage) - len(metrics.damage),
        updated=max(file.stat().st_mtime for file in _files(run)),
    )


def figures(metrics: Metrics) -> dict[str, Any]:
    """Returns the values of a `Summary` that follow from metrics alone, by their names there."""
    losses, rates = newest(metrics.updates("loss")), newest(metrics.updates("tokens_per_s"))
    goodput, account = metrics.curve("goodput"), account_of(metrics.lines)
    logged = goodput.where(np.isfinite(goodput.values)).last()
    return {
        "step": updates(metrics),
        "window": len(losses),
        "mean_loss": float(np.mean(losses)) if len(losses) else None,
        "tokens_per_s": float(np.median(rates)) if len(rates) else None,
        "stalled": _stalled(metrics),
        "goodput": logged[1] if logged else account.goodput if account and account.step_s else None,
        "evaluations": evaluations(metrics),
    }


def updates(metrics: Metrics) -> int:
    """Returns the number of updates: a loss of step n precedes update n + 1."""
    last = metrics.curve("loss").last()
    if last is not None:
        return last[0] + 1
    steps = metrics.lines.steps
    return int(steps.max()) + 1 if len(steps) else 0


def evaluations(metrics: Metrics) -> dict[str, tuple[int, float]]:
    """Returns {name: (step, value)} of the last value of each scalar "eval/..."."""
    names = sorted(name for name in metrics.names if name.startswith(EVALUATION))
    last = {name: metrics.updates(name).last() for name in names}
    return {name: value for name, value in last.items() if value is not None}


def newest(curve: Curve) -> np.ndarray:
    """Returns the last values, f64[n], at most WINDOW."""
    return curve.values[-WINDOW:]


def _stalled(metrics: Metrics) -> float | None:
    """Returns the share of stalls in the time of the last steps."""
    steps, stalls = (newest(metrics.updates(n)) for n in ("step_time_s", "stall_s"))
    total = steps.sum() + stalls.sum()
    return float(stalls.sum() / total) if len(stalls) and total > 0 else None


def _files(run: Run) -> list[Path]:
    """Returns the files that grow during a run."""
    names = (SETTINGS, launch.FILE, METRICS, notes.FILE)
    return [file for name in names if (file := run.path / name).is_file()]
