# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The record of training runs, of any loop: settings, launches, metrics and notes in a folder.

- A run: `Run`, with `Run.launch` to write it; `Launch` is a sink of metrics.
- Its content: `Metrics`, `Curve`, `Account`, `Straggler`, `Note`; `read_metrics` of a single file.
- Several runs: `find`, `Found`, `summary`, `Summary`, `compare`, `Comparison`.
- Pages: `page`, `Page`, and `Watch`, which serves one on 127.0.0.1. They need the extra `pages`.
- Settings as options of a command: `add_options`, `from_options`.
- `devices_of` describes devices of JAX; `DamagedRun` is the error for a run that cannot be read.

The command `python -m dovetail_runs` lists, shows, compares and watches runs. Nothing here imports
JAX.
"""

from dovetail_runs.compare import Comparison, compare
from dovetail_runs.damaged import DamagedRun
from dovetail_runs.find import Found, find
from dovetail_runs.metrics.account import Account, Straggler
from dovetail_runs.metrics.metrics import Curve, Metrics, read_metrics
from dovetail_runs.pages.page import Page, page
from dovetail_runs.pages.watch import Watch
from dovetail_runs.record.launch import Launch
from dovetail_runs.record.machine import devices_of
from dovetail_runs.record.notes import Note
from dovetail_runs.run import Run
from dovetail_runs.settings.options import add_options, from_options
from dovetail_runs.summary import Summary, summary

__all__ = [
    "Account",
    "Comparison",
    "Curve",
    "DamagedRun",
    "Found",
    "Launch",
    "Metrics",
    "Note",
    "Page",
    "Run",
    "Straggler",
    "Summary",
    "Watch",
    "add_options",
    "compare",
    "devices_of",
    "find",
    "from_options",
    "page",
    "read_metrics",
    "summary",
]
