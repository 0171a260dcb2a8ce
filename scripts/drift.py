# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compares fresh benchmark lines with the accepted ones of the same kind of machine.

    nox -s bench -- data > fresh.jsonl
    python scripts/drift.py data fresh.jsonl            # or --accept

The accepted lines are packages/NAME/benchmarks/results/*.jsonl. Lines meet if script, case, metric,
peer, Python and `machine` (see scripts/measure.py) are equal; a line without a partner is counted,
and is no failure. Compared are ratios to the peer of the same run: a slow hour slows both. A ratio
may differ by FLOOR, by twice the noise of either run, or by the spread of either. `--accept` puts
the fresh lines in the place of the accepted ones of this kind of machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FLOOR = 0.2  # a margin that was chosen, not measured
Line = dict[str, Any]


def read(file: Path) -> list[Line]:
    """Returns the lines of a file of results."""
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]


def script(line: Line) -> str:
    """Returns the name of a line's benchmark, such as "pipeline"."""
    return Path(line["command"].split()[-1]).stem


def key(line: Line) -> tuple[str, ...]:
    """Returns the identity of a line."""
    python = str(line.get("python")).rpartition(".")[0]  # 3.11 and later ones have other JAXes
    names = (script(line), line["case"], line["metric"], line["peer"], python, line.get("machine"))
    return tuple(map(str, names))


def band(*lines: Line) -> float:
    """Returns the factor, less 1, by which the ratios of the lines may differ."""
    noise = [2 * abs(line["noise"] - 1) for line in lines if line.get("noise")]
    return max(FLOOR, *noise, *(line.get("spread") or 0.0 for line in lines))


def compare(accepted: Sequence[Line], fresh: Sequence[Line]) -> tuple[list[str], list[str]]:
    """Returns the rows of the ratios that got worse, and of those that got better."""
    known = {key(line): line for line in accepted if line.get("machine")}
    worse, better = [], []
    for after in fresh:
        before = known.get(key(after))
        if before is None or not before.get("ratio") or not after.get("ratio"):
            continue
        rate = after["unit"].endswith("/s") or after["unit"] == "of slots"  # more is better
        factor = after["ratio"] / before["ratio"]
        limit = band(before, after)
        if 1 / (1 + limit) <= factor <= 1 + limit:
            continue
        row = (
            f"| {script(after)}: {after['case']} | {after['metric']} | {before['ratio']:.3g} "
            f"| {after['ratio']:.3g} | ± {limit:.0%} | {before.get('commit')} |"
        )
        (better if (factor > 1) == rate else worse).append(row)
    return worse, better


def accept(fresh: Sequence[Line], results: Path) -> None:
    """Writes fresh lines in the place of the accepted ones of their kind of machine."""
    for name in {script(line) for line in fresh}:
        file = results / f"{name}.jsonl"
        new = [line for line in fresh if script(line) == name]
        machines = {line["machine"] for line in new}
        old = read(file) if file.exists() else []
        kept = [line for line in old if line.get("machine") not in machines]
        text = "".join(f"{json.dumps(line)}\n" for line in [*kept, *new])
        file.write_text(text, encoding="utf-8")


def main() -> int:
    """Compares or accepts; the exit status is 1 if a ratio got worse by more than its band."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("package", choices=sorted(p.name for p in ROOT.glob("packages/*")))
    parser.add_argument("fresh", type=Path, help="standard output of its benchmarks")
    parser.add_argument("--accept", action="store_true", help="write the results instead")
    asked = parser.parse_args()
    results = ROOT / "packages" / asked.package / "benchmarks" / "results"
    fresh = read(asked.fresh)
    if asked.accept:
        accept(fresh, results)
        return 0
    accepted = [line for file in sorted(results.glob("*.jsonl")) for line in read(file)]
    worse, better = compare(accepted, fresh)
    alone = len({key(line) for line in fresh} - {key(line) for line in accepted})
    print(f"{asked.package}: {len(fresh)} lines, {alone} of them without an accepted one")
    head = "| case | metric | accepted | now | band | accepted at |\n|---|---|---|---|---|---|"
    for title, rows in (("worse", worse), ("better", better)):
        print("\n".join([f"\n{len(rows)} {title}", *(["", head, *rows] if rows else [])]))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
