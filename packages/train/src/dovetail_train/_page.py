# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML around the charts of a report: light, dark and printed, from phone to desk."""

import re
from collections.abc import Mapping, Sequence
from html import escape

from dovetail_train._chart import COLOURS, number, swatch

# Okabe and Ito's colours, which the colour-blind tell apart (https://jfly.uni-koeln.de/color/);
# darkened on white and lightened on black to a contrast of at least 3.
_LIGHT = ("#0072b2", "#d55e00", "#007a5a", "#b3538b", "#a87000", "#3a86b8", "#444444")
_DARK = ("#56b4e9", "#ff8c42", "#2cc59a", "#e39cc4", "#f0b429", "#9ad1f5", "#cccccc")

_STYLE = """
:root{color-scheme:light dark;--ink:#1d1d1f;--soft:#5f6368;--rule:#dcdce0;--paper:#fff;LIGHT}
@media(prefers-color-scheme:dark){:root{--ink:#ececf0;--soft:#a4a4ad;--rule:#3a3a40;--paper:#17171a;DARK}}
@media print{:root{--ink:#000;--soft:#444;--rule:#ccc;--paper:#fff;LIGHT}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.25rem;background:var(--paper);color:var(--ink);
 font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 1rem}
h2{font-size:1.15rem;margin:2rem 0 .5rem}
.charts{display:grid;gap:1.25rem 2rem;
 grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}
figure{margin:0;break-inside:avoid}
figcaption{font-weight:600}
figure p,.key,.legend{margin:.15rem 0 0;color:var(--soft);font-size:.82rem}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1rem;padding:0;list-style:none}
svg{display:block;width:100%;height:auto}
svg.swatch{display:inline-block;width:1.7rem;height:.55rem;margin-right:.35rem}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
svg .y{text-anchor:end}svg .x{text-anchor:middle}
polyline,line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.faint{opacity:.3;stroke-width:1}
.grid,.axis{stroke:var(--rule);stroke-width:1}.axis{stroke:var(--soft)}
.resume{stroke-dasharray:2 4;stroke-width:1.2;opacity:.8}.skip,.stall{stroke-width:1.6}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.2rem 1.2rem .2rem 0;text-align:left;vertical-align:top;
 border-bottom:1px solid var(--rule)}
pre{padding:.6rem;border:1px solid var(--rule);white-space:pre-wrap}
.wide{width:60%}.bar{height:.8rem;background:var(--soft)}tr:first-child .bar{background:var(--c0)}
td{min-width:5rem}tbody th{font-weight:400;color:var(--soft)}
@media(max-width:40rem){body{padding:.8rem}.many thead{display:none}
 .many tr,.many th,.many td{display:block;border:0;padding:0}
 .many tr{border-bottom:1px solid var(--rule);padding:.3rem 0}
 .many td::before{content:attr(data-run) ": ";color:var(--soft)}}
COLOURS
"""


def page(title: str, sections: Sequence[str]) -> str:
    """Returns the whole document; empty sections are left out."""
    body = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_style()}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def section(heading: str, figures: Sequence[str]) -> str:
    """Returns a heading over figures; "" without any."""
    if not figures:
        return ""
    inside = "\n".join(figures)
    return f'<section><h2>{escape(heading)}</h2><div class="charts">{inside}</div></section>'


def paragraph(text: str) -> str:
    """Returns a paragraph; "" without text."""
    return f'<p class="key">{escape(text)}</p>' if text else ""


def figure(
    caption: str, chart: str, *, legend: Sequence[tuple[int, str]], notes: Sequence[str]
) -> str:
    """Returns a chart with a legend of (series, label) pairs.

    Args:
        caption: Title.
        chart: SVG.
        legend: (series, label) pairs.
        notes: Sentences below the chart.
    """
    entries = "".join(f"<li>{swatch(series)}{escape(label)}</li>" for series, label in legend)
    listed = f'<ul class="legend">{entries}</ul>' if entries else ""
    note = f"<p>{escape(' '.join(notes))}</p>" if notes else ""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{listed}{chart}{note}</figure>"


def table(rows: Sequence[tuple[str, Sequence[str]]], runs: Sequence[str]) -> str:
    """Returns figures by name, a column for each run; on a narrow screen columns become lines."""
    kind = ' class="many"' if len(runs) > 1 else ""
    head = "".join(f'<th scope="col">{escape(run)}</th>' for run in runs)
    lines = []
    for name, cells in rows:
        tagged = "".join(
            f'<td data-run="{escape(run)}">{escape(cell)}</td>'
            for run, cell in zip(runs, cells, strict=True)
        )
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{tagged}</tr>')
    return (
        f"<section><h2>Final figures</h2><table{kind}>"
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></section>"
    )


def facts(heading: str, values: Mapping[str, str], *, note: str = "") -> str:
    """Returns a table of texts by name.

    Args:
        heading: Title.
        values: Texts by name.
        note: A sentence below the table.
    """
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in values.items()
    )
    return _block(heading, f"<table><tbody>{lines}</tbody></table>", note)


def bar_table(heading: str, values: Mapping[str, float], *, note: str) -> str:
    """Returns a table of numbers from 0, each with a bar; the first in colour.

    Args:
        heading: Title.
        values: Numbers by name.
        note: A sentence below the table.
    """
    most = max(values.values()) or 1.0
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{number(value)}</td><td class="wide">'
        f'<div class="bar" style="width:{100 * value / most:.1f}%"></div></td></tr>'
        for name, value in values.items()
    )
    return _block(heading, f"<table><tbody>{lines}</tbody></table>", note)


def texts(heading: str, values: Sequence[str], *, note: str) -> str:
    """Returns texts with their line breaks.

    Args:
        heading: Title.
        values: Texts.
        note: A sentence below the texts.
    """
    return _block(heading, "".join(f"<pre>{escape(value)}</pre>" for value in values), note)


def _block(heading: str, content: str, note: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}{paragraph(note)}</section>"


def bars(runs: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Returns a bar per run, divided by seconds of activity; equal activities share a colour."""
    activities = list(dict.fromkeys(name for _, seconds in runs for name in seconds))
    width, height, gap = 520, 22, 24
    parts, said = [], []
    for row, (run, seconds) in enumerate(runs):
        total, across, top = sum(seconds.values()), 0.0, row * (height + gap) + 16
        parts.append(f'<text x="0" y="{top - 4}">{escape(run)}, {number(total)} s</text>')
        for name, value in seconds.items():
            long = value / total * width
            share = f"{name}: {number(value)} s ({value / total:.1%})"
            parts.append(
                f'<rect class="c{activities.index(name) % COLOURS}" x="{across:.2f}" y="{top}" '
                f'width="{long:.2f}" height="{height}"><title>{escape(share)}</title></rect>'
            )
            across += long
        said.append(f"{run}: " + ", ".join(f"{n} {v / total:.1%}" for n, v in seconds.items()))
    tall = len(runs) * (height + gap)
    legend = "".join(
        f'<li><svg class="swatch" viewBox="0 0 26 8" aria-hidden="true"><rect '
        f'class="c{i % COLOURS}" width="26" height="8"/></svg>{escape(name)}</li>'
        for i, name in enumerate(activities)
    )
    text = escape("; ".join(said))
    return (
        f"<figure><figcaption>seconds by activity</figcaption>"
        f'<ul class="legend">{legend}</ul><svg viewBox="0 0 {width} {tall}" role="img" '
        f'aria-labelledby="time-t time-d"><title id="time-t">seconds by activity</title>'
        f'<desc id="time-d">{text}</desc>{"".join(parts)}</svg><p>{text}</p></figure>'
    )


def slug(name: str) -> str:
    """Returns an HTML identifier for a name; different names give different ones."""
    return "chart-" + re.sub(r"[^A-Za-z0-9]", lambda match: f"_{ord(match[0]):x}_", name)


def _style() -> str:
    def variables(colours: Sequence[str]) -> str:
        return ";".join(f"--c{i}:{colour}" for i, colour in enumerate(colours))

    classes = "".join(
        f".c{i}{{stroke:var(--c{i})}}circle.c{i},rect.c{i}{{fill:var(--c{i});stroke:none}}"
        for i in range(COLOURS)
    )
    style = _STYLE.replace("LIGHT", variables(_LIGHT)).replace("DARK", variables(_DARK))
    return style.replace("COLOURS", classes)
