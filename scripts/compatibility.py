# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md: the last result of each package's suite, by set of versions and Python.

A cell shows a result only while it is about today's claim: the lower bounds of `floor` and the
versions of `pinned` must still be those that the run had. Otherwise it says "not run". A result of
`pinned` also answers for `newest` if the newest releases of `FOUNDATION` are the pinned ones.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import suite_results
import workspace

PAGE = workspace.ROOT / "docs" / "compatibility.md"
NEWEST = workspace.ROOT / "docs" / "results" / "newest.json"
PYTHONS = (*workspace.PYTHONS, "3.13")
NOT_RUN = "not run"
FOUNDATION = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorstore"),
    *("grain", "array-record", "qwix", "numpy"),
)

INTRODUCTION = """# Compatibility

Each cell is the last result of a package's whole suite, in an environment of the package and its
dependencies alone: tests passed, tests failed, jax, and the date. *floor* has the lowest versions
that the package declares, *pinned* those of `constraints/`, *newest* the newest releases. A cell is
emptied when bounds or pins change. Nothing is filled in by hand: each run leaves its result, and
`python scripts/tables.py` writes this page.
"""


def newest(file: Path = NEWEST) -> dict[str, Any]:
    """The newest releases on record: {"date": ..., "versions": {"3.12": {"jax": "0.12"}}}."""
    if not file.exists():
        return {"date": "", "versions": {}}
    return json.loads(file.read_text(encoding="utf-8"))


def resolve(file: Path = NEWEST) -> None:
    """Looks up the newest releases of `FOUNDATION` on the package index, for each Python."""
    versions = {}
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "wanted.in"
        wanted.write_text("\n".join(FOUNDATION) + "\n", encoding="utf-8")
        for python in PYTHONS:
            line = ["uv", "pip", "compile", str(wanted), "--python-version", python, "--quiet"]
            line += ["--no-header", "--no-annotate", "--upgrade"]
            output = subprocess.run(line, check=True, capture_output=True, text=True).stdout
            pins = [workspace.parse(text) for text in output.splitlines()]
            versions[python] = {
                pin.name: pin.specifier.removeprefix("==") for pin in pins if pin.name in FOUNDATION
            }
    document = {"date": time.strftime("%Y-%m-%d"), "versions": versions}
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def stale(line: suite_results.Line, releases: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a result is about other bounds or versions than the repository has now.

    Args:
        line: A result on record.
        releases: The newest versions by Python.
    """
    if line["set"] == "floor":
        return line["declared"] != suite_results.declared(line["package"])
    if line["set"] == "newest":
        return differs(line["versions"], releases.get(line["python"], {}))
    return bool(suite_results.unpinned(line["versions"], line["python"]))


def differs(versions: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether a distribution that both name has two versions, or they name none in common."""
    common = versions.keys() & others.keys()
    return not common or any(versions[name] != others[name] for name in common)


def cell(
    lines: Sequence[suite_results.Line],
    package: str,
    which: str,
    python: str,
    releases: Mapping[str, Mapping[str, str]],
) -> str:
    """The text of one cell.

    Args:
        lines: The results on record.
        package: A folder of packages/, or `suite_results.TOGETHER`.
        which: One of `suite_results.SETS`.
        python: As in "3.12".
        releases: The newest versions by Python.
    """
    mine = [
        line
        for line in lines
        if (line["package"], line["python"], line["marks"]) == (package, python, "")
        and line["alone"]
        and not stale(line, releases)
    ]
    for line in mine:
        if line["set"] == which:
            return _shown(line)
    for line in mine:
        same = not differs(line["versions"], releases.get(python, {}))
        if which == "newest" and line["set"] == "pinned" and same:
            return "as pinned: the same versions"
    return NOT_RUN


def _shown(line: suite_results.Line) -> str:
    jax = line["versions"].get("jax")
    failed = f", **{line['failed']} failed**" if line["failed"] else ""
    return f"{line['passed']} passed{failed}; {f'jax {jax}; ' if jax else ''}{line['date']}"


def page(lines: Sequence[suite_results.Line], record: Mapping[str, Any]) -> str:
    """The page, from the results and the newest releases on record."""
    text, releases = INTRODUCTION, record["versions"]
    for python in PYTHONS:
        text += f"\n## Python {python}\n\n| package | {' | '.join(suite_results.SETS)} |\n"
        text += "|---|---|---|---|\n"
        for package in [*workspace.members(), suite_results.TOGETHER]:
            cells = (cell(lines, package, s, python, releases) for s in suite_results.SETS)
            text += f"| {suite_results.title(package)} | {' | '.join(cells)} |\n"
    return text + _versions(releases, record["date"])


def _versions(releases: Mapping[str, Mapping[str, str]], date: str) -> str:
    """The table of pinned and newest versions."""
    heads = [f"{which}, {python}" for python in PYTHONS for which in ("pinned", "newest")]
    text = f"\n## Versions\n\nThe newest releases are those of {date}.\n\n"
    text += f"| | {' | '.join(heads)} |\n" + "|---" * (len(heads) + 1) + "|\n"
    for name in FOUNDATION:
        pairs = ((workspace.constraints(p).get(name), releases[p].get(name)) for p in PYTHONS)
        text += f"| {name} | {' | '.join(v or '' for pair in pairs for v in pair)} |\n"
    return text


def current() -> str:
    """The page as it must be now."""
    return page(suite_results.read(), newest())
