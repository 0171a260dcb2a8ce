# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The schedules of dovetail-optim, drawn whenever the documentation is built."""

from pathlib import Path

import jax
import jax.numpy as jnp

from dovetail_optim import Schedule, branch, wsd
from dovetail_stack.quickstart.chart import line_chart

PAGE = Path(__file__).resolve().parent / "packages/measured/schedules.md"  # git ignores it
STEPS = 1000
SHAPES = ("linear", "cosine", "1-sqrt", "square", "exponential")
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")
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
    """The page, with a chart for each row of `CHARTS`."""
    style = "".join(
        f".s{i} {{ stroke: {colour}; stroke-width: 1.5 }} " for i, colour in enumerate(COLOURS)
    )
    style += ".grid { stroke: #ccc } svg text { font-size: 11px; fill: currentColor }"
    parts = [f"# Schedules\n\n```{{raw}} html\n<style>{style}</style>\n```\n"]
    for title, schedules in CHARTS.items():
        chart = line_chart(
            {name: _points(one) for name, one in schedules.items()},
            x_label="step",
            y_label="learning rate",
        )
        parts.append(f"\n{title}\n\n```{{raw}} html\n{chart}\n```\n")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("".join(parts), encoding="utf-8")


def _points(schedule: Schedule) -> list[tuple[float, float]]:
    values = jax.vmap(schedule)(jnp.arange(STEPS + 1))
    return [(step, float(values[step])) for step in range(0, STEPS + 1, 5)]
