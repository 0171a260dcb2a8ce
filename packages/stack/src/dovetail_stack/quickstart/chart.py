# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Line charts as inline SVG, so that a report is one file that needs no network."""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 40
TICKS = 5  # aimed at; round numbers decide


def line_chart(series: Mapping[str, Points], *, x_label: str, y_label: str) -> str:
    """One SVG with a line for each named series, over shared axes.

    A series of one point is drawn as a dot. Points that are not finite are left out.

    Raises:
      ValueError: no series holds a finite point.
    """
    lines = {name: _finite(points) for name, points in series.items()}
    every = [point for points in lines.values() for point in points]
    if not every:
        raise ValueError(f"a chart needs at least one finite point, got series={sorted(series)}")
    x_ticks = _ticks(min(x for x, _ in every), max(x for x, _ in every))
    y_ticks = _ticks(min(y for _, y in every), max(y for _, y in every))
    place = _placer(x_ticks, y_ticks)
    body = [
        *_axes(x_ticks, y_ticks, place, x_label=x_label, y_label=y_label),
        *(_line(i, points, place) for i, points in enumerate(lines.values())),
        *(_legend(i, name) for i, name in enumerate(lines) if len(lines) > 1),
    ]
    title = escape(f"{y_label} over {x_label}")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        + "".join(body)
        + "</svg>"
    )


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, about TICKS of them, that enclose [low, high]."""
    span = (high - low) or abs(high) or 1.0
    rough = span / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _placer(x_ticks: Sequence[float], y_ticks: Sequence[float]):
    x_span, y_span = x_ticks[-1] - x_ticks[0], y_ticks[-1] - y_ticks[0]

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x_ticks[0]) / x_span * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - y_ticks[0]) / y_span * (HEIGHT - TOP - BOTTOM)
        return across, down

    return place


def _axes(x_ticks, y_ticks, place, *, x_label: str, y_label: str):
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for y in y_ticks:
        _, down = place(x_ticks[0], y)
        yield f'<line class="grid" x1="{LEFT}" y1="{down:.1f}" x2="{right}" y2="{down:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{y:.6g}</text>'
    for x in x_ticks:
        across, _ = place(x, y_ticks[0])
        yield f'<text x="{across:.1f}" y="{bottom + 16}" text-anchor="middle">{x:.6g}</text>'
    middle = (LEFT + right) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    yield (
        f'<text transform="translate(14 {HEIGHT / 2 - 12}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )


def _line(i: int, points: Points, place) -> str:
    placed = [place(x, y) for x, y in points]
    if len(placed) == 1:
        ((across, down),) = placed
        return f'<circle class="s{i}" cx="{across:.1f}" cy="{down:.1f}" r="3"/>'
    path = " ".join(f"{across:.1f},{down:.1f}" for across, down in placed)
    return f'<polyline class="s{i}" fill="none" points="{path}"/>'


def _legend(i: int, name: str) -> str:
    down = TOP + 8 + 16 * i
    start = WIDTH - 150
    return (
        f'<line class="s{i}" x1="{start}" y1="{down}" x2="{start + 18}" y2="{down}"/>'
        f'<text x="{start + 24}" y="{down + 4}">{escape(name)}</text>'
    )
