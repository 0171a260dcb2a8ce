# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Measured figures in READMEs and documentation, written from result files.

A text marks a figure by a comment before and after it, which no page shows:

    takes <!-- figure: attention -->0.20<!-- --> of the peer's CPU seconds

figures.toml beside this file defines each figure: result file, line and field. `once-published` is
empty as soon as `url` of [tool.dovetail] in the root's pyproject.toml is set.
`python scripts/figures.py` writes all figures; a test of the house fails while a text differs.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import workspace

TABLE = Path(__file__).with_suffix(".toml")
MARKED = re.compile(r"<!-- figure: (?P<name>[\w-]+) -->(?P<shown>[^<]*)<!-- -->")
AGGREGATES = {"sum": sum, "max": max, "min": min}
PRINTED = {"take": "ratio", "over": 1, "of": None, "format": "#.2g"}


def figures() -> dict[str, str]:
    """Returns the text of every figure by name."""
    texts = {"once-published": "" if workspace.url() else " (once published)"}
    for file, group in tomllib.loads(TABLE.read_text(encoding="utf-8")).items():
        content = (workspace.ROOT / file).read_text(encoding="utf-8")
        lines = content.splitlines() if file.endswith(".jsonl") else [content]
        results = [json.loads(line) for line in lines]
        defaults = group.pop("defaults", {})
        for name, value in group.items():
            definition = {"case": value} if isinstance(value, str) else value
            texts[name] = text(name, defaults | definition, results)
    return texts


def text(name: str, definition: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> str:
    """Returns one figure as it is printed.

    Args:
        name: Its name, for messages.
        definition: `take`, the field (default "ratio"), divided by `over`, a field or a number.
            `of`: "sum", "max" or "min" of the selected lines, else there must be one. `format`: a
            format specification (default two digits). Any other key is a field of the lines to
            select, with a regular expression for its value.
        lines: All lines of the result file.

    Raises:
        ValueError: The definition selects no line, or several without `of`.
    """
    take, over, of, form = (definition.get(key, default) for key, default in PRINTED.items())
    wanted = {key: value for key, value in definition.items() if key not in PRINTED}
    chosen = [x for x in lines if all(re.search(v, str(x.get(k))) for k, v in wanted.items())]
    if not chosen or (of is None and len(chosen) > 1):
        raise ValueError(
            f"figure {name} must select {'lines' if of else 'one line'}; got {len(chosen)} for "
            f"{wanted}; mend its keys in scripts/figures.toml"
        )
    if isinstance(chosen[0][take], str):
        return chosen[0][take]
    values = [x[take] if over == 1 else x[take] / x.get(over, over) for x in chosen]
    return format(AGGREGATES[of](values) if of else values[0], form).rstrip(".")


def texts() -> list[Path]:
    """Returns READMEs and hand-written pages of the documentation, which may hold figures."""
    patterns = ("README.md", "packages/*/README.md", "docs/*.md", "docs/packages/*.md")
    return sorted(file for pattern in patterns for file in workspace.ROOT.glob(pattern))


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
