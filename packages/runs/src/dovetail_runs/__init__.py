# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The record of training runs, of any loop: settings, launches, metrics and notes in a folder.

A launch locks the folder and records its start, its metrics and its end. Everything is read from
the files, also while a launch writes them. Nothing here imports JAX.

    >>> from dovetail_runs import Run, find
    >>> run = Run("runs/first")
    >>> with run.launch(settings={"rate": 0.1}) as launch:
    ...     for step in range(3):
    ...         launch.write(step, {"loss": 1 / (step + 1)})
    >>> run.state, run.metrics.curve("loss").last()
    ('finished', (2, 0.3333333333333333))
    >>> find("runs")
    Found(first; 0 damaged)

- Recording: `Run.launch`; `Launch` is a sink of scalars; `devices_of` describes devices of JAX.
- Reading: `Run`, with `Metrics`, `Curve`, `Account`, `Straggler`, `Note` and `Medium`, a `Text`, an
  `Image` or a `Histogram`; `read_metrics` of a
  single file; `DamagedRun`.
- Several runs: `find`, `Found`, `summary`, `Summary`, `compare`, `Comparison`;
  `export` to TensorBoard and W&B.
- Pages: `page` and `Page`, with a `Section` for results of your own, and `Watch`, which serves one
  on 127.0.0.1. They need the extra `pages`.
- Settings as options of a command: `add_options`, `from_options`; in a TOML file: `read_options`,
  `options_text`.

The command `python -m dovetail_runs` lists, shows, compares, watches, exports, notes and tags.
"""

from importlib.metadata import version as _version

from dovetail_runs.compare import Comparison, compare
from dovetail_runs.damaged import DamagedRun
from dovetail_runs.export import export
from dovetail_runs.find import Found, find
from dovetail_runs.metrics.account import Account, Straggler
from dovetail_runs.metrics.metrics import Curve, Lines, Metrics, read_metrics
from dovetail_runs.pages.page import Page, page
from dovetail_runs.pages.section import Section
from dovetail_runs.pages.watch import Watch
from dovetail_runs.record.launch import Launch
from dovetail_runs.record.machine import devices_of
from dovetail_runs.record.media import Histogram, Image, Medium, Text
from dovetail_runs.record.notes import Note
from dovetail_runs.run import Run
from dovetail_runs.settings import add_options, from_options
from dovetail_runs.settings_file import options_text, read_options
from dovetail_runs.summary import Summary, summary

__all__ = [  # noqa: RUF022, by topic
    # Recording
    "Run",
    "Launch",
    "devices_of",
    # Reading
    "Metrics",
    "Curve",
    "Lines",
    "Account",
    "Straggler",
    "Note",
    "Medium",
    "Text",
    "Image",
    "Histogram",
    "read_metrics",
    "DamagedRun",
    # Several runs
    "find",
    "Found",
    "summary",
    "Summary",
    "compare",
    "Comparison",
    "export",
    # Pages
    "page",
    "Page",
    "Section",
    "Watch",
    # Settings as options
    "add_options",
    "from_options",
    "read_options",
    "options_text",
]

__version__ = _version("dovetail-runs")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
