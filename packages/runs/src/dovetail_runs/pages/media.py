# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Texts, images and histograms on a page: some steps of each series, over the whole run."""

import base64
import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from dovetail_runs.record.media import Histogram, Image, Medium, Text
from dovetail_runs.run import Run

_SHOWN = 8  # texts or images of a series
_STEPS, _BINS = 50, 40  # of a drawn series of histograms
BYTES = 400_000  # of all texts and images of a page


def media_html(runs: Mapping[str, Run]) -> str:
    """Returns sections of texts and images, escaped. What goes beyond `BYTES` is left out.

    Args:
        runs: Runs by the name to show.
    """
    sections, left = [], BYTES
    for name, run in runs.items():
        for series in _series(run.media, Text | Image):
            shown, blocks = _some(series, _SHOWN), []
            for medium in shown:
                block = _block(medium)
                if len(block) > left:
                    block = "left out of a page of this size"
                left -= len(block)
                blocks.append(f"<div><p>step {medium.step}</p>{block}</div>")
            heading = series[0].name if len(runs) == 1 else f"{series[0].name}, {name}"
            count = f'<p class="note">{len(shown)} of {len(series)} steps</p>'
            sections.append(
                f'<section><h2>{escape(heading)}</h2><div class="media">{"".join(blocks)}</div>'
                f"{count if len(shown) < len(series) else ''}</section>"
            )
    return "".join(sections)


def heat_charts(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """Returns a chart of each series of histograms: shares of the values by step and size.

    Args:
        runs: Runs by the name to show.
    """
    charts = []
    for name, run in runs.items():
        for series in _series(run.media, Histogram):
            some = [h for h in _some(series, _STEPS) if isinstance(h, Histogram)]
            title = series[0].name if len(runs) == 1 else f"{series[0].name}, {name}"
            lost = sum(histogram.lost for histogram in some)
            charts.append(
                {"name": f"{series[0].name}, {name}", "title": title, "group": "Histograms"}
                | {"from_zero": False, "lines": [], "heat": _heat(some), "lost": lost}
            )
    return charts


def _series(media: Sequence[Medium], kind: Any) -> list[list[Medium]]:
    """Returns the media of a kind by name, each by step."""
    named = sorted((m for m in media if isinstance(m, kind)), key=lambda m: (m.name, m.step))
    return [list(group) for _, group in itertools.groupby(named, key=lambda m: m.name)]


def _some(series: Sequence[Medium], most: int) -> list[Medium]:
    """Returns at most so many media, evenly spaced, with the first and the last."""
    places = np.unique(np.linspace(0, len(series) - 1, min(most, len(series))).astype(int))
    return [series[place] for place in places]


def _block(medium: Medium) -> str:
    """Returns a text or an image as HTML."""
    if isinstance(medium, Text):
        return f"<pre>{escape(medium.text)}</pre>"
    assert isinstance(medium, Image)
    if not medium.file.is_file():
        return "the file is missing"
    data = base64.b64encode(medium.file.read_bytes()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(medium.name)}">'


def _heat(some: Sequence[Histogram]) -> dict[str, list[Any]]:
    """Returns steps "x", sizes "y" and shares of the values "z", [sizes, steps], in equal bins."""
    low, high = min(h.edges[0] for h in some), max(h.edges[-1] for h in some)
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    columns = []
    for histogram in some:
        # A bin's values are spread evenly over it.
        below = np.r_[0, np.cumsum(histogram.counts)] / max(1, histogram.counts.sum())
        columns.append(np.diff(np.interp(edges, histogram.edges, below)))
    shares = [[float(f"{x:.3g}") for x in row] for row in np.array(columns).T.tolist()]
    middles = [float(f"{x:.5g}") for x in ((edges[1:] + edges[:-1]) / 2).tolist()]
    return {"x": [histogram.step for histogram in some], "y": middles, "z": shares}
