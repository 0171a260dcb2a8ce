# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reports: one HTML page about one or several runs, readable without a network.

A report is drawn from the JSONL files of `Jsonl`. It can be made at any time and on any machine,
also during the run.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail_train import _elsewhere
from dovetail_train.reports import page as _page
from dovetail_train.reports.chart import Line, Marks, line_chart, number
from dovetail_train.reports.curves import Curve, History, read_history
from dovetail_train.reports.words import words

# Points of one line: two for each pixel of a chart, for the lowest and the highest.
_POINTS = 1000
# Fewer values than this are seen best as they are.
_SMOOTH_FROM = 50


@dataclass(frozen=True, kw_only=True)
class Section:
    """Results of your own on the page of a report, such as scores or generated text.

    Args:
        heading: Title of the section.
        content: A mapping of numbers is drawn as bars from 0, a mapping of text as a table, a
            string as a paragraph. Each string of a sequence keeps its line breaks.
        note: A sentence below the content.
    """

    heading: str
    content: str | Sequence[str] | Mapping[str, float] | Mapping[str, str]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    """The result of `show_report`. A notebook displays it as the last value of a cell.

    Attributes:
        html: The whole document.
    """

    html: str

    def __repr__(self) -> str:
        return f"ReportPage({len(self.html):,} characters of HTML; display it in a notebook)"

    def _repr_html_(self) -> str:
        # In a frame of its own, for the page has styles for the elements of a whole document.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" width="100%" height="640" '
            'style="border:0"></iframe>'
        )


def show_report(
    runs: Mapping[str, str | Path],
    *,
    title: str = "Training report",
    sections: Sequence[Section] = (),
    facts: Mapping[str, object] | None = None,
    leave_out: Sequence[str] = (),
) -> ReportPage:
    """Returns a report about training runs, to be displayed in a notebook.

    Args:
        runs: Metrics files of `Jsonl` by display name; see `write_report`.
        title: Heading of the page.
        sections: Sections of your own. They follow the loss.
        facts: Versions, configuration or devices by name, written as text at the end.
        leave_out: Scalars that the page does not show, by their names in the log.

    Raises:
        ValueError: As `write_report`.

    Example:

        >>> import dovetail_train as dt
        >>> dt.Jsonl("metrics.jsonl").write(0, {"loss": 2.5})
        >>> page = dt.show_report({"first run": "metrics.jsonl"})
    """
    if not isinstance(runs, Mapping):
        raise TypeError(
            f"runs must map a display name to a metrics file, got runs={runs!r}; write for example "
            'write_report("report.html", {"first": "metrics.jsonl"})'
        )
    if not runs:
        raise ValueError(
            "a report needs at least one run, got runs={}; "
            'write for example write_report("report.html", {"first": "metrics.jsonl"})'
        )
    histories = [read_history(label, path, leave_out) for label, path in runs.items()]
    own = [_section(section) for section in sections]
    first, *charts = _charts(histories)
    blocks = [first, _page.paragraph(_key(histories)), *own]
    blocks.append(_page.table(_figures(histories), [history.label for history in histories]))
    blocks += [_time_bars(histories), *charts]
    if facts:
        blocks.append(_page.facts("Facts", {name: str(value) for name, value in facts.items()}))
    return ReportPage(html=_page.page(title, blocks))


@_elsewhere.call
def write_report(
    out: str | Path,
    runs: Mapping[str, str | Path],
    *,
    title: str = "Training report",
    sections: Sequence[Section] = (),
    facts: Mapping[str, object] | None = None,
    leave_out: Sequence[str] = (),
) -> Path:
    """Writes an HTML report about training runs and returns its path.

    The page begins with the loss, followed by your sections, figures and a chart of each other
    scalar. Seconds by activity come from the scalars "seconds/ACTIVITY", which are running totals.
    Rates are drawn as medians, without stalls; steps for which the devices waited longer than they
    worked are marked.

    Args:
        out: HTML file to write. It needs no other file. An existing file is replaced.
        runs: Metrics files of `Jsonl` by display name. Curves of several runs are overlaid.
        title: Heading of the page.
        sections: Sections of your own. They follow the loss.
        facts: Versions, configuration or devices by name, written as text at the end.
        leave_out: Scalars that the page does not show, by their names in the log.

    Raises:
        ValueError: There are no runs, a file has no step, or `Jsonl` did not write it. Also for
            a section without content, and for bars below 0 or not finite.

    Example:

        >>> import dovetail_train as dt
        >>> dt.Jsonl("metrics.jsonl").write(0, {"loss": 2.5})
        >>> report = dt.write_report("report.html", {"first run": "metrics.jsonl"})
    """
    page = show_report(runs, title=title, sections=sections, facts=facts, leave_out=leave_out)
    target = Path(out)
    target.write_text(page.html, encoding="utf-8")
    return target


def _section(section: Section) -> str:
    heading, content, note = section.heading, section.content, section.note
    if not content:
        raise ValueError(
            f"a section needs content, got content={content!r} under {heading!r}; leave it out of "
            "sections, or pass text, a sequence of texts or a mapping"
        )
    if not isinstance(content, Sequence | Mapping):
        raise TypeError(
            f"content must be text, a sequence of texts or a mapping, got content={content!r} "
            f"under {heading!r}; write content={{'loss': {content!r}}} for a bar"
        )
    if isinstance(content, str):
        return _page.texts(heading, [], note=f"{content} {note}".strip())
    if not isinstance(content, Mapping):
        return _page.texts(heading, content, note=note)
    words = {name: value for name, value in content.items() if isinstance(value, str)}
    if words:
        if len(words) < len(content):
            raise TypeError(
                f"values must all be text or all numbers, got content={dict(content)!r} under "
                f"{heading!r}; write str(value) for a table of text"
            )
        return _page.facts(heading, words, note=note)
    values = {name: float(value) for name, value in content.items()}
    if wrong := {n: v for n, v in values.items() if not 0 <= v < math.inf}:
        raise ValueError(
            f"bars must be finite numbers from 0, got {wrong} under {heading!r}; pass them as text"
        )
    return _page.bar_table(heading, values, note=note)


# Charts in their order: heading, names, whether they are rates.
_Choice = Callable[[str], bool]
_GROUPS: Sequence[tuple[str, _Choice, bool]] = (
    ("Loss", lambda name: name in ("loss", "eval/loss") or name.startswith("loss/"), False),
    ("Evaluation", lambda name: name.startswith("eval/"), False),
    ("Throughput", lambda name: name in ("tokens_per_s", "rows_per_s", "mfu", "hfu"), True),
    ("Norms", lambda name: name.endswith("_norm"), False),
)
# Drawn elsewhere, or numbers that say nothing as a curve.
_ELSEWHERE = ("skipped", "goodput", "step_time_s", "stall_s", "tokens", "count")


def _charts(histories: Sequence[History]) -> list[str]:
    names = list(dict.fromkeys(name for history in histories for name in history.names()))
    left = [n for n in names if n not in _ELSEWHERE and not n.startswith(("seconds/", "count/"))]
    sections = []
    for heading, belongs, rates in _GROUPS:
        selected = sorted((name for name in left if belongs(name)), key=left.index)
        left = [name for name in left if name not in selected]
        figures = _figures_of(histories, selected, rates=rates)
        sections.append(_page.section(heading, figures))
    others = _figures_of(histories, left, rates=False)
    return [*sections, _page.section("Other scalars", others)]


def _figures_of(histories: Sequence[History], names: Sequence[str], *, rates: bool) -> list[str]:
    """Returns a chart for each name with the runs overlaid; the terms of one run's loss share
    one.
    """
    figures = []
    terms = [name for name in names if name.startswith("loss/")]
    together = len(histories) == 1 and len(terms) > 1
    for name in names:
        if together and name in terms:
            continue
        having = [(history.label, history, name) for history in histories]
        figures.append(_figure(having, name=name, rates=rates))
    if together:
        parts = [(words(t), histories[0], t) for t in terms]
        figures.append(_figure(parts, name="loss by term"))
    return [figure for figure in figures if figure]


def _figure(parts: Sequence[tuple[str, History, str]], *, name: str, rates: bool = False) -> str:
    """Returns the chart of (label, run, scalar) triples with legend and caption; "" if all are
    empty. Rates start at 0, are smoothed by medians, and have marks of stalls.
    """
    lines, notes, marks = [], set(), []
    drawn = []
    for series, (label, history, scalar) in enumerate(parts):
        curve = history.curve(scalar)
        if not len(curve.finite()):
            continue
        drawn.append((series, label))
        lines += _lines(curve, label=label, series=series, notes=notes, rates=rates)
        stalled = history.stalled if rates else ()
        marks.append(
            Marks(series=series, resumed=history.resumes, skipped=history.skipped, stalled=stalled)
        )
    if not lines:
        return ""
    lines.sort(key=lambda line: not line.faint)
    if len({id(history) for _, history, _ in parts}) == 1:
        marks = marks[:1]  # the same run's, once
    title, legend = words(name), drawn if len(parts) > 1 else []
    chart = line_chart(lines, id=_page.slug(name), title=title, marks=marks, from_zero=rates)
    return _page.figure(title, chart, legend=legend, notes=sorted(notes))


def _lines(curve: Curve, *, label: str, series: int, notes: set[str], rates: bool) -> list[Line]:
    thin = curve.thinned(_POINTS)
    if len(thin.steps) < len(curve.steps):
        notes.add(f"Of {len(curve.steps):,} values the lowest and highest of each pixel are drawn.")
    raw = Line(label=label, curve=thin, series=series)
    if len(curve.steps) < _SMOOTH_FROM:
        return [raw]
    kind, reach = "median" if rates else "mean", max(1, len(curve.steps) // 100)
    notes.add(f"Strong: the {kind} of each 2% of the values. Faint: each value.")
    means = curve.smoothed(reach).thinned(_POINTS)
    smooth = curve.medians(reach, most=_POINTS) if rates else means
    return [
        Line(label=label, curve=thin, series=series, faint=True),
        Line(label=label, curve=smooth, series=series),
    ]


def _key(histories: Sequence[History]) -> str:
    """Returns an explanation of the marks in the charts."""
    resumed = any(history.resumes for history in histories)
    skipped = any(history.skipped for history in histories)
    words = ["Dashed verticals: a run was resumed."] * resumed
    words += ["Strokes on the axis: a step that was skipped, of which nothing is drawn."] * skipped
    if any(history.stalled for history in histories):
        words.append(
            "Strokes at the top: the devices waited longer for a step than they worked on it; "
            "rates leave the wait out."
        )
    return " ".join(words)


def _updates(history: History) -> int:
    """Returns the number of updates: a loss at step n precedes update n + 1, an evaluation
    follows n.
    """
    return max(line["step"] + ("loss" in line) for line in history.lines)


def _figures(histories: Sequence[History]) -> list[tuple[str, list[str]]]:
    """Returns rows of (name, one text per run)."""
    rows: list[tuple[str, list[str]]] = [
        ("steps", [f"{_updates(history):,}" for history in histories]),
        ("resumed", [_times(len(history.resumes)) for history in histories]),
        ("skipped steps", [str(len(history.skipped)) for history in histories]),
        ("stalled steps", [str(len(history.stalled)) for history in histories]),
    ]
    names = list(dict.fromkeys(name for history in histories for name in history.names()))
    for name in names:
        if name == "loss" or name.startswith(("loss/", "eval/")):
            rows.append((f"last {words(name)}", [_number(h.last(name)) for h in histories]))
    for name in ("tokens_per_s", "rows_per_s", "mfu", "hfu", "step_time_s"):
        if name in names:
            rows.append((f"median {words(name)}", [_number(_median(h, name)) for h in histories]))
    if "goodput" in names:
        rows.append((words("goodput"), [_number(history.last("goodput")) for history in histories]))
    return rows


def _time_bars(histories: Sequence[History]) -> str:
    bars = []
    for history in histories:
        names = [name for name in history.names() if name.startswith("seconds/")]
        seconds = {words(name): history.last(name) or 0.0 for name in names}
        if sum(seconds.values()) > 0:
            bars.append((history.label, seconds))
    return f"<section><h2>Where the time went</h2>{_page.bars(bars)}</section>" if bars else ""


def _median(history: History, name: str) -> float | None:
    values = history.curve(name).finite()
    return float(np.median(values)) if len(values) else None


def _number(value: float | None) -> str:
    return "–" if value is None else number(value)


def _times(count: int) -> str:
    return {0: "no", 1: "once", 2: "twice"}.get(count, f"{count} times")
