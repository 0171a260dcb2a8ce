# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The schedules of dovetail-optim, drawn whenever the documentation is built."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_optim import Schedule, branch, wsd
from dovetail_train.reports.chart import Line, line_chart, swatch
from dovetail_train.reports.curves import Curve

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
    """Writes the page, with a chart for each row of `CHARTS`."""
    style = "".join(f".c{i} {{ stroke: {colour} }} " for i, colour in enumerate(COLOURS))
    style += "svg polyline, svg line { fill: none; stroke-width: 1.5 } .grid { stroke: #ccc } "
    style += "svg text { font-size: 11px; fill: currentColor } svg .y { text-anchor: end } "
    style += "svg .x { text-anchor: middle } svg.swatch { width: 1.7rem; height: .55rem }"
    blocks = [f"# Schedules\n\n```{{raw}} html\n<style>{style}</style>\n```\n"]
    for i, (title, schedules) in enumerate(CHARTS.items()):
        lines = [
            Line(label=name, curve=_curve(schedule), series=series)
            for series, (name, schedule) in enumerate(schedules.items())
        ]
        chart = line_chart(lines, id=f"schedules-{i}", title="learning rate", from_zero=True)
        legend = " ".join(f"<span>{swatch(line.series)} {line.label}</span>" for line in lines)
        blocks.append(f"\n{title}\n\n```{{raw}} html\n<p>{legend}</p>{chart}\n```\n")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("".join(blocks), encoding="utf-8")


def _curve(schedule: Schedule) -> Curve:
    steps = np.arange(0, STEPS + 1, 5)
    return Curve(steps, np.asarray(jax.vmap(schedule)(jnp.asarray(steps)), np.float64))
