# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML around the charts of a report: light, dark and printed, from phone to desk."""

import re
from collections.abc import Mapping, Sequence
from html import escape

from dovetail_train.reports.chart import COLOURS, FONT, WIDTH, number, swatch

# Apart by at least 0.13 in OKLab, also as the colour-blind see them (Machado et al. 2009), with a
# contrast of at least 3 to their ground.
_LIGHT = ("#0072b2", "#d55e00", "#00a3b2", "#2a10c8", "#14140a", "#6d2900", "#a2435b")
_DARK = ("#56b4e9", "#ff8c42", "#f0e442", "#e02a1c", "#3070ff", "#60f0d8", "#a8489a")

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
 grid-template-columns:repeat(auto-fill,minmax(min(100%,28rem),1fr))}
figure{margin:0;max-width:WIDTHpx;break-inside:avoid}
figcaption{font-weight:600}
figcaption::first-letter{text-transform:uppercase}
figure p,.key,.legend{margin:.15rem 0 0;color:var(--soft);font-size:.9rem}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1rem;padding:0;list-style:none}
svg{display:block;width:100%;height:auto;overflow:visible}
.swatch{display:inline-block;width:1.7rem;height:.55rem;margin-right:.35rem}
svg text{font:16px system-ui,sans-serif;fill:var(--soft);dominant-baseline:central}
@media(max-width:30rem){svg text{font-size:FONTpx}}
svg .y{text-anchor:end}svg .x{text-anchor:middle}
polyline,line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.faint{opacity:.3;stroke-width:1}
.grid,.axis{stroke:var(--rule);stroke-width:1}.axis{stroke:var(--soft)}
.resume{stroke-dasharray:2 4;stroke-width:1.2;opacity:.8}.skip,.stall{stroke-width:1.6}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.2rem 1.2rem .2rem 0;text-align:left;vertical-align:top;
 border-bottom:1px solid var(--rule)}
pre{padding:.6rem;border:1px solid var(--rule);white-space:pre-wrap;max-height:24rem;overflow:auto}
.stack{display:flex;height:1.4rem;gap:2px;margin:.25rem 0 .75rem}
.wide{width:60%}.bar{height:.8rem;background:var(--soft)}tr:first-child .bar{background:var(--c0)}
td{min-width:4rem}.number{white-space:nowrap}.note{max-width:44rem}
th{overflow-wrap:break-word}tbody th{font-weight:400;color:var(--soft)}
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
    lines = []
    for name, cells in rows:
        tagged = "".join(
            f'<td data-run="{escape(run)}">{escape(cell)}</td>'
            for run, cell in zip(runs, cells, strict=True)
        )
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{tagged}</tr>')
    return f"<section><h2>Final figures</h2>{_grid(runs, lines)}</section>"


def _grid(runs: Sequence[str], lines: Sequence[str]) -> str:
    """Returns a table with a column for each run; one run needs no head."""
    head = "".join(f'<th scope="col">{escape(run)}</th>' for run in runs)
    many = f"<thead><tr><th></th>{head}</tr></thead>" if len(runs) > 1 else ""
    kind = ' class="many"' if many else ""
    return f"<table{kind}>{many}<tbody>{''.join(lines)}</tbody></table>"


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
        f'<tr><th scope="row">{escape(name)}</th><td class="number">{number(value)}</td>'
        '<td class="wide">'
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
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(heading)}</h2>{content}{said}</section>"


def bars(runs: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Returns a bar per run, divided by seconds of activity, over a table of the seconds.

    Equal activities share a colour. The longest comes first; those without a second are left out.
    """
    sums = {name: sum(s.get(name, 0.0) for _, s in runs) for _, seconds in runs for name in seconds}
    activities = [n for n in sorted(sums, key=lambda n: -sums[n]) if sums[n]]
    stacks, cells = [], dict.fromkeys(activities, "")
    for run, seconds in runs:
        total, parts = sum(seconds.values()), []
        for i, name in enumerate(activities):
            value = seconds.get(name, 0.0)
            share = f"{number(value)} s, {value / total:.1%}"
            parts.append(f'<i class="c{i % COLOURS}" style="width:{100 * value / total:.2f}%"></i>')
            cells[name] += f'<td class="number" data-run="{escape(run)}">{share}</td>'
        label = escape(f"{run}: {number(total)} s")
        stacks.append(f"<div>{label}</div>" if len(runs) > 1 else "")
        stacks.append(f'<div class="stack" role="img" aria-label="{label}">{"".join(parts)}</div>')
    lines = [
        f'<tr><th scope="row"><i class="swatch c{i % COLOURS}"></i>{escape(name)}</th>{row}</tr>'
        for i, (name, row) in enumerate(cells.items())
    ]
    return f"{''.join(stacks)}{_grid([run for run, _ in runs], lines)}"


def slug(name: str) -> str:
    """Returns an HTML identifier for a name; different names give different ones."""
    return "chart-" + re.sub(r"[^A-Za-z0-9]", lambda match: f"_{ord(match[0]):x}_", name)


def _style() -> str:
    def variables(colours: Sequence[str]) -> str:
        return ";".join(f"--c{i}:{colour}" for i, colour in enumerate(colours))

    classes = "".join(
        f".c{i}{{stroke:var(--c{i})}}circle.c{i}{{fill:var(--c{i})}}i.c{i}{{background:var(--c{i})}}"
        for i in range(COLOURS)
    )
    style = _STYLE.replace("LIGHT", variables(_LIGHT)).replace("DARK", variables(_DARK))
    style = style.replace("WIDTH", str(WIDTH)).replace("FONT", str(FONT))
    return style.replace("COLOURS", classes)
