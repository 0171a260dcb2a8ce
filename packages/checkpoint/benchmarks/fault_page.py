# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation about faults, and the options of the scripts that write them.

No benchmark of its own: faults.py and misplaced.py use it.
"""

import argparse
import importlib.metadata
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Named(Protocol):
    """A column of the page."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...


def page(head: str, found: dict[str, dict[str, Counter[str]]], arms: Sequence[Named]) -> str:
    """The page of the documentation: each cell is found / wrong / harmless, in percent."""
    names = [arm.name for arm in arms]
    lines = [
        head,
        "| fault | trials | " + " | ".join(names) + " |",
        "|---" * (len(arms) + 2) + "|",
    ]
    for fault, by_arm in found.items():
        trials = max(counts.total() for counts in by_arm.values())
        cells = [_cell(by_arm[name]) for name in names]
        lines.append(f"| {fault} | {trials} | " + " | ".join(cells) + " |")
    versions = {arm.version: importlib.metadata.version(arm.version) for arm in arms}
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join(
        [
            *lines,
            "",
            f"{told}; Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}.",
            "",
        ]
    )


def _cell(counts: Counter[str]) -> str:
    if not counts:
        return "one file"
    shares = (counts[kind] * 100 / counts.total() for kind in ("found", "wrong", "harmless"))
    return " / ".join(f"{share:.4g}" for share in shares)


def counted(ours: Counter[str], peer: Counter[str]) -> dict[str, int]:
    """The counts of both, for a line of the results."""
    kinds = ("found", "wrong", "harmless")
    return {
        "trials": ours.total(),
        **{f"store_{kind}": ours[kind] for kind in kinds},
        **{f"peer_{kind}": peer[kind] for kind in kinds},
    }


def options(about: str) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--part", type=float, default=1.0)
    parser.add_argument("--table", type=Path)
    return parser.parse_args()


def write(table: Path | None, text: str) -> None:
    """Writes the page, or prints it beside the results."""
    if table:
        table.write_text(text, encoding="utf-8")
    else:
        print(text, file=sys.stderr)
