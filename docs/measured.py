# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A page of what was measured for each package, written from its benchmarks/results when built.

Nothing is copied by hand, and nothing chosen: every recorded line is a row, those that a peer wins
too.
"""

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/packages/measured"  # git ignores it
HEAD = ("case", "unit", "ours", "peer's", "peer", "ratio", "noise", "memory, ours / peer")
MEMORY = ("temp_bytes", "temporary_bytes", "program_bytes")
OPENING = """# dovetail-{package}: measured

Ratio is ours over the peer's: the median over rounds, each with both. Noise is the same number for
the peer against itself. A ratio no further from 1 than the noise means equal. A peer without a
version is the same library used in another way, named by the case. Memory is XLA's own account: of
temporaries, or of the whole program if the script says so.
"""


def write() -> None:
    """A page per package that has results."""
    PAGES.mkdir(exist_ok=True)
    for folder in sorted(ROOT.glob("packages/*/benchmarks/results")):
        files = sorted(folder.glob("*.jsonl"))
        if files:
            package = folder.parent.parent.name
            page = OPENING.format(package=package) + "".join(map(_section, files))
            (PAGES / f"{package}.md").write_text(page, encoding="utf-8")


def _section(file: Path) -> str:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    script = file.parent.parent / f"{file.stem}.py"
    # The module's docstring: what is compared with what.
    (about,) = re.findall(r'^"""(.*?)"""', script.read_text(encoding="utf-8"), re.DOTALL | re.M)[:1]
    tables = (_table(list(group)) for _, group in groupby(lines, key=_where))
    return f"\n## {file.stem}\n\n{about.strip()}\n" + "".join(tables)


def _where(line: dict[str, Any]) -> str:
    jax = f", jax {line['jax']}" if line.get("jax") else ""
    return (
        f"{line['device']}, {line['cores']} cores; Python {line['python']}{jax}; commit "
        f"{line['commit']}, {line['date']}"
    )


def _table(lines: list[dict[str, Any]]) -> str:
    """Returns a table without the columns that no line has."""
    columns = zip(HEAD, *map(_cells, lines), strict=True)
    kept = [column for column in columns if any(column[1:])]
    head, *rows = (f"| {' | '.join(cells)} |\n" for cells in zip(*kept, strict=True))
    return f"\n{_where(lines[0])}:\n\n{head}{'|---' * len(kept)}|\n{''.join(rows)}"


def _cells(line: dict[str, Any]) -> list[str]:
    version = line.get("peer_version")
    peer = f"{line['peer']} {version}" if version else line["peer"] or ""
    if line.get("refused"):
        peer += f" (does not run: {line['refused']})".replace("|", "\\|")
    return [
        line["case"].replace("|", "\\|"),
        f"{line['metric']}, {line['unit']}",
        _number(line["value"]),
        _number(line["peer_value"]),
        peer,
        _number(line["ratio"]),
        _number(line["noise"]),
        _memory(line),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _memory(line: dict[str, Any]) -> str:
    """MiB of ours and the peer's, where both were asked."""
    for name in MEMORY:
        pair = line.get(name), line.get(f"peer_{name}")
        if None not in pair:
            return " / ".join(f"{bytes_ / 2**20:.3g} MiB" for bytes_ in pair)
    return ""
