# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of runs in one HTML file: `page`."""

import html
import importlib.resources
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_runs.metrics.metrics import Metrics
from dovetail_runs.pages.content import content
from dovetail_runs.pages.section import Section
from dovetail_runs.run import Run


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of runs. A notebook displays it as the last value of a cell.

    Attributes:
        html: The whole document, with the script that draws it.
    """

    html: str

    def __repr__(self) -> str:
        return f"Page({len(self.html):,} characters of HTML; display it in a notebook, or write it)"

    def _repr_html_(self) -> str:
        # In a frame of its own, for the page has styles for the elements of a whole document.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" width="100%" height="720" '
            'style="border:0"></iframe>'
        )

    def write(self, file: str | Path) -> Path:
        """Writes the page, which needs no other file and no network. Returns the path.

        Args:
            file: The HTML file. An existing one is replaced.
        """
        target = Path(file)
        partial = target.with_name(f"{target.name}.partial")
        partial.write_text(self.html, encoding="utf-8")
        os.replace(partial, target)
        return target


def page(
    runs: Mapping[str, Run | Metrics],
    *,
    title: str = "Training runs",
    sections: Sequence[Section] = (),
    leave_out: Collection[str] = (),
) -> Page:
    """Returns a page of runs: a chart of each scalar with all runs, and tables.

    The page has controls for smoothing and for logarithmic axes. A drag zooms, a double click
    returns. A faint line has the lowest and highest values of each stretch, a strong one medians.
    Needs the extra `pages`.

    Args:
        runs: Runs by the name to show. `read_metrics(file)` stands for a file without a run.
        title: Heading of the page.
        sections: Results of your own. They follow the loss.
        leave_out: Scalars that the page does not show, by their names in the log.

    Raises:
        TypeError: The runs have no names, or one is neither a run nor metrics.
        ValueError: There is no run, or a folder is no run.
        ImportError: Plotly is missing.

    Example:

        >>> from dovetail_runs import Run, page
        >>> with Run("runs/first").launch({"rate": 0.1}) as launch:
        ...     launch.write(0, {"loss": 2.5})
        >>> page({"first": Run("runs/first")}).write("page.html").name
        'page.html'
    """
    if not isinstance(runs, Mapping):
        raise TypeError(
            f"runs must be a mapping by the name to show, got {runs!r:.100}: pass "
            "{'first': Run('runs/first')}"
        )
    if not runs:
        raise ValueError("a page needs a run, got none: pass {'first': Run('runs/first')}")
    if wrong := {n: run for n, run in runs.items() if not isinstance(run, Run | Metrics)}:
        raise TypeError(
            f"a page must be of runs or metrics, got {wrong!r:.100}: write Run(folder), or "
            "read_metrics(file) for a file alone"
        )
    shown = content(runs, sections=sections, leave_out=leave_out)
    return Page(html=document(shown, title=title, script=library()))


def document(content: Mapping[str, Any], *, title: str, script: str, every_s: float = 0.0) -> str:
    """Returns the HTML of a page.

    Args:
        content: Charts and tables; see `content.content`.
        title: Heading.
        script: The plotting library, or "" to load it from plotly.js beside the page.
        every_s: Seconds until the page reads content.json beside it again; 0: never.
    """
    values = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    plotly = f"<script>{script}</script>" if script else '<script src="plotly.js"></script>'
    options = "".join(
        f'<option value="{level}"{" selected" if level == "2" else ""}>{text}</option>'
        for level, text in (("0", "none"), *((n, f"{n} %") for n in ("1", "2", "5", "10")))
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{html.escape(title)}</title><style>{_file("page.css")}</style></head>
<body data-every="{every_s:g}"><h1>{html.escape(title)}</h1>
<form onsubmit="return false">
<label>smoothing, medians of <select id="smoothing">{options}</select></label>
<label><input type="checkbox" id="log-y"> log y</label>
<label><input type="checkbox" id="log-x"> log steps</label>
<label><input type="checkbox" id="marks" checked> marks: launches (dotted),
skipped steps (below), stalls (above)</label>
<span id="status"></span></form>
<ul id="legend"></ul><div id="first"></div><div id="sections"></div><div id="others"></div>
<div id="tables"></div>
<script type="application/json" id="content">{values}</script>
{plotly}
<script>{_file("page.js")}</script></body></html>
"""


def library() -> str:
    """Returns the script of the plotting library. ImportError without it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(
            "a page needs the package plotly, which cannot be imported: "
            "pip install 'dovetail-runs[pages]'"
        ) from error
    return get_plotlyjs()


def _file(name: str) -> str:
    return (importlib.resources.files("dovetail_runs.pages") / name).read_text(encoding="utf-8")
