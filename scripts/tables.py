# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Write docs/compatibility.md and docs/features.md from the results of suites.

`python scripts/tables.py` gathers build/results/ into docs/results/suites.jsonl first;
`python scripts/tables.py FOLDER` gathers the artifacts that a workflow left there instead.
`--resolve` looks up the newest releases too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import compatibility
import features
import suite_results
import workspace


def main(line: list[str] | None = None) -> None:
    """Gathers the results and writes both pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--resolve", action="store_true", help="look up the newest releases")
    given = parser.parse_args(line)
    if given.resolve:
        compatibility.resolve()
    lines = suite_results.gather(given.folders or [workspace.ROOT / suite_results.FOLDER])
    for module in (compatibility, features):
        module.PAGE.write_text(module.current(), encoding="utf-8")
        print(f"{module.PAGE.relative_to(workspace.ROOT)}: from {len(lines)} results on record")


if __name__ == "__main__":
    main()
