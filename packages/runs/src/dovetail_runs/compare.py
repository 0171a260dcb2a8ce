# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs side by side: differing settings and versions, losses at common steps, evaluations."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail_runs.run import Run
from dovetail_runs.settings import flat, short
from dovetail_runs.summary import WINDOW, Summary, summary
from dovetail_runs.tables import devices_of_launch, differing, side_by_side


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs side by side. Each row has one value for each run, None where it has none.

    Attributes:
        names: Names of the runs.
        summaries: The row of each run.
        settings: Settings that differ, by "field", or "group.field" where two groups have it.
        versions: Versions that differ, of the last launches.
        devices: Devices of the last launches, "8 × H100".
        mean_losses: Losses at the steps that all runs have, each the mean over the last 100 updates
            up to the step.
        evaluations: Last value of each evaluation.
    """

    names: Sequence[str]
    summaries: Sequence[Summary]
    settings: Mapping[str, Sequence[Any]]
    versions: Mapping[str, Sequence[str | None]]
    devices: Sequence[str | None]
    mean_losses: Mapping[int, Sequence[float]]
    evaluations: Mapping[str, Sequence[float | None]]


def compare(runs: Mapping[str, Run] | Sequence[Run]) -> Comparison:
    """Compares runs, also those with other classes of settings.

    Args:
        runs: Two runs or more, by the name to show. Without names: their folders.

    Raises:
        ValueError: There are fewer than two, or one is no run.

    Example:

        >>> from dovetail_runs import Run, compare
        >>> for rate in (0.1, 0.2):
        ...     with Run(f"rate-{rate}").launch({"rate": rate}) as launch:
        ...         launch.write(0, {"loss": 1 / rate})
        >>> both = compare({name: Run(name) for name in ("rate-0.1", "rate-0.2")})
        >>> both.settings, both.mean_losses
        ({'rate': [0.1, 0.2]}, {0: [10.0, 5.0]})
    """
    if len(runs) < 2:
        names = ", ".join(map(str, runs)) or "none"
        raise ValueError(f"a comparison needs two runs or more, got {names}: name another")
    if not isinstance(runs, Mapping):
        return compare({str(run.path): run for run in runs})
    some = list(runs.values())
    summaries = [summary(run) for run in some]
    tables = short([flat(run.settings) for run in some])
    recipes = [{"recipe": row.recipe} for row in summaries]
    last = [run.launches[-1] if run.launches else {} for run in some]
    losses = [_trailing_means(run) for run in some]
    common = functools.reduce(np.intersect1d, [steps for steps, _ in losses])
    return Comparison(
        names=list(runs),
        summaries=summaries,
        settings=differing([r | t for r, t in zip(recipes, tables, strict=True)]),
        versions=differing([begun.get("versions", {}) for begun in last]),
        devices=[devices_of_launch(begun) for begun in last],
        mean_losses={
            int(step): [float(means[np.searchsorted(steps, step)]) for steps, means in losses]
            for step in common
        },
        evaluations=side_by_side(
            [{k: v for k, (_, v) in row.evaluations.items()} for row in summaries]
        ),
    )


def _trailing_means(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Returns steps i64[n] and for each the mean over the last WINDOW losses up to it, f64[n]."""
    curve = run.metrics.updates("loss")
    if not curve:
        return curve.steps, curve.values
    padded = np.r_[np.zeros(WINDOW - 1), curve.values]
    sums = np.lib.stride_tricks.sliding_window_view(padded, WINDOW).sum(-1)
    return curve.steps, sums / np.minimum(np.arange(len(curve)) + 1, WINDOW)
