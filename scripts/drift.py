# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compares fresh benchmark lines with the accepted ones of the same kind of machine.

    nox -s bench -- data > fresh.jsonl
    python scripts/drift.py data fresh.jsonl

The accepted lines are packages/NAME/benchmarks/results/*.jsonl. Lines meet if script, case,
metric, peer, Python and `machine` (see scripts/measure.py) are equal. Compared are ratios to the
peer of the same run: a slow hour slows both. A ratio may be worse by FLOOR, by twice the noise of
either run, or by the spread of either.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FLOOR = 0.2  # a margin that was chosen, not measured
Line = dict[str, Any]


def read(*files: Path) -> list[Line]:
    """Returns the lines of files of results."""
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def key(line: Line) -> tuple[str, ...]:
    """Returns the identity of a line."""
    script = Path(line["command"].split()[-1]).stem
    python = str(line.get("python")).rpartition(".")[0]  # 3.11 and later ones have other JAXes
    return script, line["case"], line["metric"], str(line["peer"]), python, str(line.get("machine"))


def band(*lines: Line) -> float:
    """Returns the factor, less 1, by which the ratios of the lines may differ."""
    noise = [2 * abs(line["noise"] - 1) for line in lines if line.get("noise")]
    return max(FLOOR, *noise, *(line.get("spread") or 0.0 for line in lines))


def worse(accepted: Iterable[Line], fresh: Iterable[Line]) -> list[str]:
    """Returns a row of a table for each ratio that is worse than accepted by more than its band."""
    known = {key(line): line for line in accepted if line.get("machine") and line.get("ratio")}
    rows = []
    for after in fresh:
        before = known.get(key(after))
        if before is None or not after.get("ratio"):
            continue
        factor = after["ratio"] / before["ratio"]
        if after["unit"].endswith("/s") or after["unit"] == "of slots":  # more is better
            factor = 1 / factor
        if factor > 1 + band(before, after):
            script, case, metric, *_ = key(after)
            ratios = f"{before['ratio']:.3g} | {after['ratio']:.3g} | ± {band(before, after):.0%}"
            rows.append(f"| {script}: {case} | {metric} | {ratios} | {before.get('commit')} |")
    return rows


def main() -> int:
    """Prints the table; the exit status is 1 if it has rows."""
    package, fresh = sys.argv[1:]
    lines = read(Path(fresh))
    accepted = read(*sorted(ROOT.glob(f"packages/{package}/benchmarks/results/*.jsonl")))
    alone = len({key(line) for line in lines} - {key(line) for line in accepted})
    print(f"{package}: {len(lines)} lines, {alone} of them without an accepted one\n")
    rows = worse(accepted, lines)
    head = ["| case | metric | accepted | now | band | accepted at |", "|---|---|---|---|---|---|"]
    print(*[*head, *rows] if rows else ["None is worse."], sep="\n")
    return 1 if rows else 0


if __name__ == "__main__":
    sys.exit(main())
