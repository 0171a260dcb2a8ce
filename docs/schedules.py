# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The schedules of dovetail-optim, drawn whenever the documentation is built."""

import io
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from dovetail_optim import Schedule, branch, wsd

PAGE = Path(__file__).resolve().parent / "packages/measured/schedules.md"  # git ignores it
STEPS = 1000
SHAPES = ("linear", "cosine", "1-sqrt", "square", "exponential")
LONG = wsd(1.0, warmup=50, total=STEPS, cooldown=200)
CHARTS: dict[str, dict[str, Schedule]] = {
    "`wsd(1.0, warmup=50, total=1000, cooldown=400, floor=0.05, shape=...)`": {
        shape: wsd(1.0, warmup=50, total=STEPS, cooldown=400, floor=0.05, shape=shape)
        for shape in SHAPES
    },
    "`long = wsd(1.0, warmup=50, total=1000, cooldown=200)`, and `branch(long, ...)`": {
        "long": LONG,
        "at=300, cooldown=100": branch(LONG, at=300, cooldown=100),
        "at=600, cooldown=150": branch(LONG, at=600, cooldown=150),
    },
}


def write() -> None:
    """Writes the page, with a chart for each row of `CHARTS`."""
    blocks = [f"\n{title}\n\n```{{raw}} html\n{_chart(c)}\n```\n" for title, c in CHARTS.items()]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("".join(["# Schedules\n", *blocks]), encoding="utf-8")


def _chart(schedules: Mapping[str, Schedule]) -> str:
    """Returns the learning rates of the schedules as SVG."""
    figure = Figure(figsize=(7, 3), layout="tight")
    axes = figure.subplots()
    steps = np.arange(0, STEPS + 1, 5)
    for name, schedule in schedules.items():
        axes.plot(steps, jax.vmap(schedule)(steps), label=name)
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    file = io.StringIO()
    figure.savefig(file, format="svg")
    return file.getvalue()[file.getvalue().index("<svg") :]
