# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""List the training runs in a directory, show one, or compare several.

The command `python -m dovetail_runs`, with a page of the curves. It reads files of the runs only,
touches no device, and a run may still be running.
"""

import argparse
from pathlib import Path

from dovetail_runs import Run
from dovetail_runs.command import cli
from dovetail_runs.run import METRICS
from dovetail_runs.settings.fields import flat, short


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the library's own arguments, and --html."""
    actions = cli.add_arguments(parser)
    actions["compare"].add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with the curves too"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns its exit code."""
    code = cli.run(args)
    if getattr(args, "html", None) is not None:
        _write_page(args.html, {str(path): Run(path) for path in args.runs})
    return code


def _write_page(file: Path, some: dict[str, Run]) -> None:
    from dovetail_train.reports.report import write_report

    metrics = {name: shown.path / METRICS for name, shown in some.items()}
    facts = {name: _facts(shown) for name, shown in some.items()}
    write_report(file, metrics, title="Training runs", facts=facts)


def _facts(shown: Run) -> dict[str, str]:
    """Returns settings and versions as text."""
    (settings,) = short([flat(shown.settings)])
    versions = shown.launches[-1]["versions"] if shown.launches else {}
    return {
        "recipe": str(shown.recipe),
        "state": shown.state,
        **{name: str(value) for name, value in settings.items()},
        **{f"version of {name}": value for name, value in versions.items()},
    }
