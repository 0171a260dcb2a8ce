# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Line charts as inline SVG, without a network.

Colours are classes (`c0` to `c6`), and the page defines them for light, dark and paper. Lines also
differ in their dashes, for readers and printers without colours.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

import numpy as np

from dovetail_train.reports.curves import Curve

# Two charts beside each other are as wide on a desk, so their text has the size of the page's. On a
# phone a chart shrinks to two thirds, and its text is FONT instead.
WIDTH, HEIGHT, FONT = 540, 310, 23
LEFT, RIGHT, TOP, BOTTOM = 92, 36, 14, 40
COLOURS = 7
# Solid, then by rising breaks: one for each turn through the colours.
DASHES = ("", "7 3", "2 3", "9 3 2 3")
# How wide a digit of FONT is, generously.
_DIGIT = 13
# Values that span this factor are read better on a logarithmic axis.
_LOG_FACTOR = 20
# Below this part of the largest a value is rounding, for which decades would take up the chart.
_LOG_FLOOR = 1e-12
_TICKS = 4  # at least, where the values allow it; round numbers decide how many more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One curve.

    Attributes:
        label: Name of the curve.
        curve: Its points.
        series: Index of colour and dash.
        faint: The raw values behind a smoothed line.
    """

    label: str
    curve: Curve
    series: int
    faint: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Marks:
    """Steps to mark.

    Attributes:
        series: Index of the colour.
        resumed: Steps with a dashed line through the chart.
        skipped: Steps with a stroke below it.
        stalled: Steps with a stroke above it.
    """

    series: int
    resumed: Sequence[int] = ()
    skipped: Sequence[int] = ()
    stalled: Sequence[int] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Axis:
    """Maps values to pixels, with labels."""

    low: float
    high: float
    start: int
    stop: int
    log: bool
    ticks: Sequence[tuple[float, str]]

    def place(self, value: float) -> float:
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.stop - self.start)


def line_chart(
    lines: Sequence[Line],
    *,
    id: str,
    title: str,
    marks: Sequence[Marks] = (),
    log: bool | None = None,
    from_zero: bool = False,
) -> str:
    """Returns one SVG of the lines over their steps. Each line must have a finite value.

    Args:
        lines: Curves.
        id: Identifier of the SVG in the page.
        title: Title for screen readers.
        marks: Steps to mark.
        log: Use a logarithmic axis. Default: if values are positive and span a factor of 20, but
            not of 1e12.
        from_zero: Start the axis at 0.
    """
    values = np.concatenate([line.curve.finite() for line in lines])
    steps = np.concatenate([line.curve.steps for line in lines])
    if log is None:
        low, high = float(values.min()), float(values.max())
        log = not from_zero and high >= _LOG_FACTOR * low >= _LOG_FACTOR * _LOG_FLOOR * high > 0
    x = _steps_axis(float(steps.min()), float(steps.max()))
    y = _values_axis(0.0 if from_zero else float(values.min()), float(values.max()), log=log)
    described = "; ".join(_described(line) for line in lines if not line.faint)
    body = [
        *_grid(x, y),
        *(element for mark in marks for element in _marks(mark, x)),
        *(element for line in lines for element in _line(line, x, y)),
    ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{id}-t {id}-d">'
        f'<title id="{id}-t">{escape(title)} over steps{", logarithmic" if log else ""}</title>'
        f'<desc id="{id}-d">{escape(described)}</desc>{"".join(body)}</svg>'
    )


def swatch(series: int) -> str:
    """Returns a piece of a line of that series, for a legend."""
    return (
        f'<svg class="swatch" viewBox="0 0 26 8" aria-hidden="true"><line {_style(series)} '
        f'x1="1" y1="4" x2="25" y2="4"/></svg>'
    )


def number(value: float) -> str:
    """Formats with four digits, and k, M, G or T from ten thousand on."""
    for least, unit, letter in (
        (1e12, 1e12, "T"),
        (1e9, 1e9, "G"),
        (1e6, 1e6, "M"),
        (1e4, 1e3, "k"),
    ):
        if abs(value) >= least:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


def _described(line: Line) -> str:
    values = line.curve.finite()
    first, last = (f"{value:.4g}" for value in (values[0], values[-1]))
    return f"{line.label}: from {first} to {last}, lowest {values.min():.4g}"


def _style(series: int) -> str:
    dash = DASHES[series // COLOURS % len(DASHES)]
    return f'class="c{series % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _line(line: Line, x: _Axis, y: _Axis) -> Iterator[str]:
    """Yields stretches between gaps as polylines; an isolated point is a dot."""
    style = _style(line.series).replace('class="', 'class="faint ' if line.faint else 'class="')
    curve = line.curve
    finite = np.isfinite(curve.values)
    for stretch in np.split(np.arange(len(finite)), np.flatnonzero(~finite)):
        inside = stretch[finite[stretch]]
        points = [
            (x.place(step), y.place(value))
            for step, value in zip(
                curve.steps[inside].astype(np.float64).tolist(),
                curve.values[inside].tolist(),
                strict=True,
            )
        ]
        if len(points) == 1:
            ((across, down),) = points
            yield f'<circle {style} cx="{across:.2f}" cy="{down:.2f}" r="2.5"/>'
        elif points:
            path = " ".join(f"{across:.2f},{down:.2f}" for across, down in points)
            yield f'<polyline {style} points="{path}"/>'


def _marks(marks: Marks, x: _Axis) -> Iterator[str]:
    top, bottom = TOP, HEIGHT - BOTTOM

    def within(steps: Sequence[int]) -> list[int]:
        """One step for each pixel that has some."""
        pixels = {round(x.place(float(s))): s for s in reversed(steps) if x.low <= s <= x.high}
        return sorted(pixels.values())

    colour = f"c{marks.series % COLOURS}"
    for step in within(marks.resumed):
        at = x.place(float(step))
        yield (
            f'<line class="resume {colour}" x1="{at:.2f}" y1="{top}" x2="{at:.2f}" y2="{bottom}">'
            f"<title>resumed at step {step}</title></line>"
        )
    strokes = (
        (marks.skipped, "skip", bottom, "was skipped"),
        (marks.stalled, "stall", top + 9, "came after a stall"),
    )
    for steps, kind, low, words in strokes:
        for step in within(steps):
            at = x.place(float(step))
            yield (
                f'<line class="{kind} {colour}" x1="{at:.2f}" y1="{low - 9}" x2="{at:.2f}" '
                f'y2="{low}"><title>step {step} {words}</title></line>'
            )


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value, label in y.ticks:
        down = y.place(value)
        yield f'<line class="grid" x1="{LEFT}" y1="{down:.2f}" x2="{right}" y2="{down:.2f}"/>'
        yield f'<text class="y" x="{LEFT - 6}" y="{down:.2f}">{label}</text>'
    for value, label in x.ticks:
        yield f'<text class="x" x="{x.place(value):.2f}" y="{bottom + 22}">{label}</text>'
    yield f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'


def _steps_axis(low: float, high: float) -> _Axis:
    high = max(high, low + 1.0)  # a single step has an axis too
    ticks = _linear(low, high, whole=True, room=WIDTH - LEFT - RIGHT)
    return _Axis(low=low, high=high, start=LEFT, stop=WIDTH - RIGHT, log=False, ticks=ticks)


def _values_axis(low: float, high: float, *, log: bool) -> _Axis:
    if log:
        room = (high / low) ** 0.03
        low, high = low / room, high * room
    else:
        spread = (high - low) or abs(high) or 1.0
        low, high = low - (0.04 * spread if low else 0), high + 0.04 * spread
    ticks = _logarithmic(low, high) if log else _linear(low, high)
    return _Axis(low=low, high=high, start=HEIGHT - BOTTOM, stop=TOP, log=log, ticks=ticks)


def _linear(
    low: float, high: float, *, whole: bool = False, room: int | None = None
) -> list[tuple[float, str]]:
    """Returns round numbers within [low, high], at least _TICKS unless their labels need more than
    `room`.

    Labels have the digits that differ.
    """
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    finest = max(m for m in (1, 2, 5) if power * m <= rough * 1.001)
    ticks: list[tuple[float, str]] = []
    for m in (m for m in (1, 2, 5, 10, 20, 50) if m >= finest):
        step = max(power * m, 1.0) if whole else power * m
        values = [
            float(i * step) for i in range(math.ceil(low / step), math.floor(high / step) + 1)
        ]
        write = _writer(max(map(abs, values)), step)
        ticks = [(value, write(value)) for value in values]
        widest = max((len(label) for _, label in ticks), default=0)
        if room is None or (widest + 1) * _DIGIT * (high - low) <= step * room:
            break
    return ticks


def _writer(largest: float, step: float) -> Callable[[float], str]:
    """Returns the format of an axis: one unit, with as many decimals as `step` needs."""
    if 0 < largest < 1e-3:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(step)))
        return lambda value: f"{value:.{digits}e}" if value else "0"

    def decimals(power: int) -> int:
        return max(0, -math.floor(math.log10(step / 10**power) + 1e-9))

    # A unit that needs more than one decimal would make the labels longer.
    power, letter = next(
        (
            (power, letter)
            for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k"))
            if largest >= 10 * 10**power and decimals(power) <= 1
        ),
        (0, ""),
    )
    return lambda value: f"{value / 10**power:.{decimals(power)}f}{letter}" if value else "0"


def _logarithmic(low: float, high: float) -> list[tuple[float, str]]:
    """Returns 1, 2 and 5 times powers of ten, or powers alone if those are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wide = len(powers) > 4
    every = math.ceil(len(powers) / (2 * _TICKS)) if wide else 1
    values = [m * 10.0**p for p in powers[::every] for m in ((1,) if wide else (1, 2, 5))]
    return [(v, _writer(v, v)(v)) for v in values if low <= v <= high]
