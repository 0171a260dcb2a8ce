# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Measured figures in READMEs and documentation, written from result files.

A text marks a figure by a comment before and after it, which no page shows:

    takes <!-- figure: attention -->0.20<!-- --> of the peer's CPU seconds

scripts/figures.toml says from which lines of which file each comes. `python scripts/figures.py`
writes all figures; a test of the house fails while a text differs from its files.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import workspace

TABLE = workspace.ROOT / "scripts" / "figures.toml"
MARKED = re.compile(r"<!-- figure: (?P<name>[\w-]+) -->(?P<shown>[^<]*)<!-- -->")
AGGREGATES: dict[str, Callable[[list[float]], float]] = {"sum": math.fsum, "max": max, "min": min}
SETTINGS = {"take", "over", "of", "format", "scale", "inverse"}  # the other keys select lines

Line = Mapping[str, Any]


def figures(table: Path = TABLE) -> dict[str, str]:
    """The text of every figure by name.

    Raises:
        ValueError: A definition selects no line or several, or two figures have one name.
    """
    document = tomllib.loads(table.read_text(encoding="utf-8"))
    texts: dict[str, str] = {}
    for file, group in document.items():
        lines = read(table.parent.parent / file)
        defaults = {k: v for k, v in group.items() if k != "figures"}
        for name, definition in group["figures"].items():
            if name in texts:
                raise ValueError(f"a figure must have one definition; got {name} twice; rename one")
            texts[name] = text(name, defaults | definition, lines)
    return texts


def read(file: Path) -> list[Line]:
    """The lines of a result file: JSON lines, or one JSON object."""
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in content.splitlines()]
    return [json.loads(content)]


def text(name: str, definition: Mapping[str, Any], lines: Iterable[Line]) -> str:
    """One figure as it is printed.

    Args:
        name: Its name, for messages.
        definition: `take`, the field, divided by the field `over`. `of`: "sum", "max" or "min" of
            the selected lines, else there must be one. `scale` multiplies; with `inverse` the
            figure is 1 over the number. `format`: a format specification (default "#.2g", two
            digits). Any other key selects lines: a value, or a regular expression after "~".
        lines: All lines of the file.
    """
    wanted = {key: value for key, value in definition.items() if key not in SETTINGS}
    chosen = [line for line in lines if all(_fits(line.get(k), v) for k, v in wanted.items())]
    values = [line[definition["take"]] for line in chosen]
    if "over" in definition:
        values = [a / line[definition["over"]] for a, line in zip(values, chosen, strict=True)]
    of = definition.get("of")
    if not values or (of is None and len(values) > 1):
        raise ValueError(
            f"figure {name} must select {'lines' if of else 'one line'}; got {len(values)} for "
            f"{wanted}; mend its keys in scripts/figures.toml"
        )
    value = AGGREGATES[of](values) if of else values[0]
    if isinstance(value, str):
        return value
    value = definition.get("scale", 1) * value
    value = 1 / value if definition.get("inverse") else value
    return format(value, definition.get("format", "#.2g")).rstrip(".")


def _fits(value: object, wanted: object) -> bool:
    if isinstance(wanted, str) and wanted.startswith("~"):
        return isinstance(value, str) and re.search(wanted[1:], value) is not None
    return value == wanted


def texts(root: Path = workspace.ROOT) -> list[Path]:
    """The files that may hold figures: READMEs and hand-written pages of the documentation."""
    patterns = ("README.md", "packages/*/README.md", "docs/*.md", "docs/packages/*.md")
    return sorted(file for pattern in patterns for file in root.glob(pattern))


def written(content: str, known: Mapping[str, str]) -> str:
    """Returns the content with each marked figure as in `known`; KeyError for an unknown name."""
    return MARKED.sub(lambda m: f"<!-- figure: {m['name']} -->{known[m['name']]}<!-- -->", content)


def main() -> None:
    """Writes the figures into all texts, and prints the files that changed."""
    known = figures()
    for file in texts():
        before = file.read_text(encoding="utf-8")
        after = written(before, known)
        if after != before:
            file.write_text(after, encoding="utf-8")
            print(file.relative_to(workspace.ROOT))


if __name__ == "__main__":
    main()
