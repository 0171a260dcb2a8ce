# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of a page, as HTML."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail_runs.tables import Table


def tables_html(tables: Mapping[str, Table], runs: Sequence[str]) -> str:
    """Returns tables with a column for each run, escaped.

    Args:
        tables: The content; see `dovetail_runs.tables`.
        runs: Names of the runs.
    """
    return "".join(_table(title, content, runs) for title, content in tables.items())


def _table(title: str, rows: Table, runs: Sequence[str]) -> str:
    """Returns a table with a column for each run; one run needs no head."""
    several = len(runs) > 1
    heads = "".join(f"<th>{html.escape(run)}</th>" for run in runs)
    head = f"<thead><tr><th></th>{heads}</tr></thead>" if several else ""
    # On a phone each cell says its run.
    tags = [f'<td data-run="{html.escape(run)}">' if several else "<td>" for run in runs]
    lines = [
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"{tag}{_cell(value)}</td>" for tag, value in zip(tags, values, strict=True))
        + "</tr>"
        for name, values in rows.items()
    ]
    return (
        f"<section><h2>{html.escape(title)}</h2><table>{head}"
        f"<tbody>{''.join(lines)}</tbody></table></section>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return html.escape(f"{value:.6g}" if isinstance(value, float) else str(value))
