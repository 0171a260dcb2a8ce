# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`report.html`: what the quickstart measured, on one page that needs no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from dovetail_stack.quickstart.chart import Points, line_chart


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that the page shows. Losses are nats per token, rates per second."""

    bits_per_byte: Mapping[str, float]  # the model first, then the compressors
    facts: Sequence[tuple[str, str]]  # name, value
    resume: str  # a sentence on what was compared
    loss: Points
    held_out_loss: Points
    learning_rate: Points
    throughput: Points
    samples: Sequence[tuple[str, str]]  # prompt, continuation
    versions: Mapping[str, str]
    next_steps: Sequence[tuple[str, str]]  # what for, command


def render(report: Report) -> str:
    """The page as HTML. Every string is escaped: samples are whatever the model wrote."""
    sections = [
        ("Bits per byte of the held-out files", _compression(report.bits_per_byte)),
        ("The run", _facts(report.facts) + f"<p>{escape(report.resume)}</p>"),
        ("Loss", _loss(report)),
        (
            "Learning rate",
            _chart({"learning rate": report.learning_rate}, y_label="learning rate"),
        ),
        ("Throughput", _chart({"tokens/s": report.throughput}, y_label="tokens per second")),
        ("What it writes", _samples(report.samples)),
        ("What to try next", _next_steps(report.next_steps)),
        ("Versions", _facts(sorted(report.versions.items()))),
    ]
    body = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Dovetail quickstart</title><style>{_STYLE}</style></head>"
        f"<body><h1>Dovetail quickstart</h1>{body}</body></html>\n"
    )


def _compression(bits: Mapping[str, float]) -> str:
    most = max(bits.values())
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="number">{value:.3f}</td>'
        f'<td class="wide"><div class="bar" style="width:{100 * value / most:.1f}%"></div></td>'
        "</tr>"
        for name, value in bits.items()
    )
    return (
        f"<table>{rows}</table><p>Lower is better. Each figure is for the same bytes; the "
        "compressors see them as one stream, the model predicts each file from its own text "
        "alone and from what it learned of the training files.</p>"
    )


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in facts
    )
    return f"<table>{rows}</table>"


def _loss(report: Report) -> str:
    series = {"training": report.loss, "held out": report.held_out_loss}
    return _chart(series, y_label="nats per token")


def _chart(series: Mapping[str, Points], *, y_label: str) -> str:
    return line_chart(
        {name: points for name, points in series.items() if points},
        x_label="step",
        y_label=y_label,
    )


def _samples(samples: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f"<pre><b>{escape(prompt)}</b>{escape(continuation)}</pre>"
        for prompt, continuation in samples
    )


def _next_steps(steps: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f"<li>{escape(aim)}: <code>{escape(command)}</code></li>" for aim, command in steps
    )
    return f"<ul>{items}</ul>"


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #d5dae1; --a: #1f6feb; --b: #d1592a;
  --page: #ffffff; --panel: #f4f6f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --faint: #3a424d; --a: #6cb0ff;
  --b: #ff9d6b; --page: #12161b; --panel: #1c2229; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 500; padding: .2rem .8rem .2rem 0; white-space: nowrap; }
td { padding: .2rem .8rem .2rem 0; } .wide { width: 60%; }
.number { font-variant-numeric: tabular-nums; text-align: right; }
.bar { background: var(--a); height: .8rem; border-radius: 2px; }
tr + tr .bar { background: var(--faint); }
pre { background: var(--panel); padding: .8rem; border-radius: 4px; overflow-x: auto; }
code { background: var(--panel); padding: .1rem .3rem; border-radius: 3px; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.grid { stroke: var(--faint); } .s0 { stroke: var(--a); stroke-width: 1.5; }
.s1 { stroke: var(--b); stroke-width: 2; } circle.s1 { fill: var(--b); }
"""
