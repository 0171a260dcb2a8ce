# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compares fresh benchmark lines with the last accepted ones of the same kind of machine.

    nox -s bench -- data > fresh.jsonl
    python scripts/drift.py data fresh.jsonl            # or --accept

The accepted lines are packages/NAME/benchmarks/results/*.jsonl. Lines meet if script, case, metric,
peer, Python and `machine` are equal. The machine, which scripts/measure.py writes, is a CPU's
instruction sets and cores, or the kind of an accelerator. One without accepted lines is said, and
is no failure.

Compared are ratios to the peer of the same run: a slow hour slows both. A ratio drifted if it
differs from the accepted one by more than its band, the largest of

- FLOOR, a margin that was chosen, not measured: raise or lower it once nights have shown;
- twice the noise of either run: how far the peer, measured twice, is from itself;
- three standard errors of the medians of both runs, from their spreads (the middle half is 1.35
  standard deviations wide, the error of a median 1.25 over the root of the repeats).

Counts of bytes are exact: their band is EXACT. A drift for the worse fails; one for the better is
said. `--accept` puts the fresh lines in the place of the accepted ones of this kind of machine; the
lines of other machines stay.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FLOOR, EXACT = 0.2, 0.01
Line = dict[str, Any]
Key = tuple[str, ...]


class Drift(NamedTuple):
    """One figure that left its band: by how much, as a factor above 1 if it got worse."""

    case: str
    metric: str
    accepted: float
    fresh: float
    band: float
    worse: bool
    commit: str


def read(file: Path) -> list[Line]:
    """The lines of a file of results. ValueError for what is no JSON line of measure.py."""
    lines = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            line["case"], line["metric"], line["unit"], line["command"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"results must be JSON lines as scripts/measure.py prints them, got "
                f"{file}:{number}: {text[:60]!r} ({error}); keep only standard output"
            ) from None
        lines.append(line)
    return lines


def script(line: Line) -> str:
    """The name of the benchmark of a line, such as "pipeline"."""
    return Path(line["command"].split()[-1]).stem


def key(line: Line) -> Key | None:
    """The identity of a line; None for lines without a recorded machine."""
    if not line.get("machine"):
        return None
    python = str(line.get("python")).rpartition(".")[0]  # 3.11 and later ones have other JAXes
    return script(line), line["case"], line["metric"], str(line["peer"]), python, line["machine"]


def figure(line: Line) -> float | None:
    """Bytes if they are counted, else the ratio to the peer; None if there is neither."""
    value = line["value"] if exact(line) else line.get("ratio")
    return value if value and math.isfinite(value) and value > 0 else None


def exact(line: Line) -> bool:
    """Whether a line counts bytes: of XLA's account or on a wire, not of a live process."""
    counted = line["metric"] in ("temporary_bytes", "bytes_received")
    return counted and line["unit"].startswith(("bytes", "B"))


def more_is_better(line: Line) -> bool:
    """Whether a larger figure is the better one: rates, and the share of slots that is filled."""
    return line["unit"] == "of slots" or line["unit"].endswith("/s")


def band(accepted: Line, fresh: Line) -> float:
    """The factor, less 1, by which the figures may differ: see the head of this file."""
    if exact(fresh):
        return EXACT
    noise = [abs(line["noise"] - 1) for line in (accepted, fresh) if line.get("noise")]
    errors = [
        1.25 * (line.get("spread") or 0.0) / 1.35 / math.sqrt(line.get("repeats") or 1)
        for line in (accepted, fresh)
    ]
    return max(FLOOR, 2 * max(noise, default=0.0), 3 * math.hypot(*errors))


def compare(accepted: Sequence[Line], fresh: Sequence[Line]) -> tuple[list[Drift], list[str]]:
    """The figures that left their band, and sentences on what could not be compared."""
    known = {key(line): line for line in accepted if key(line)}
    notes = []
    machines = {line.get("machine") for line in fresh}
    for machine in sorted(map(str, machines - {line.get("machine") for line in accepted})):
        notes.append(f"none recorded for this kind of machine: {machine}")
    drifts = []
    for line in fresh:
        before = known.pop(key(line), None)
        if before is None:
            if line.get("machine") in {other.get("machine") for other in accepted}:
                notes.append(f"new: {script(line)}: {line['case']}, {line['metric']}")
            continue
        drift = _drift(before, line)
        drifts += [drift] if drift else []
    ran = {(script(line), line.get("machine")) for line in fresh}
    gone = [line for line in known.values() if (script(line), line["machine"]) in ran]
    notes += [f"gone: {script(line)}: {line['case']}, {line['metric']}" for line in gone]
    return drifts, notes


def _drift(accepted: Line, fresh: Line) -> Drift | None:
    before, after = figure(accepted), figure(fresh)
    if before is None or after is None:
        return None
    worsening = before / after if more_is_better(fresh) else after / before
    limit = band(accepted, fresh)
    if 1 / (1 + limit) <= worsening <= 1 + limit:
        return None
    case = f"{script(fresh)}: {fresh['case']}"
    commit = str(accepted.get("commit"))
    return Drift(case, fresh["metric"], before, after, limit, worsening > 1, commit)


def table(drifts: Sequence[Drift]) -> str:
    """A Markdown table of drifts, the worst first."""
    head = (
        "| | case | metric | accepted | now | band | accepted at |\n|---|---|---|---|---|---|---|"
    )
    ranked = sorted(drifts, key=lambda d: -abs(math.log(d.fresh / d.accepted)))
    rows = [
        f"| {'worse' if d.worse else 'better'} | {d.case} | {d.metric} | {d.accepted:.3g} "
        f"| {d.fresh:.3g} | ± {d.band:.0%} | {d.commit} |"
        for d in ranked
    ]
    return "\n".join([head, *rows])


def accept(fresh: Sequence[Line], results: Path) -> list[Path]:
    """Writes fresh lines in the place of the accepted ones of their machine; the files."""
    files = []
    for name in sorted({script(line) for line in fresh}):
        file = results / f"{name}.jsonl"
        new = [line for line in fresh if script(line) == name]
        machines = {line.get("machine") for line in new} - {None}
        old = read(file) if file.exists() else []
        kept = [line for line in old if line.get("machine") not in machines]
        text = "".join(f"{json.dumps(line)}\n" for line in [*kept, *new])
        file.write_text(text, encoding="utf-8")
        files.append(file)
    return files


def main() -> int:
    """Compares or accepts; the exit status is 1 if a figure got worse by more than its band."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("package", choices=sorted(p.name for p in ROOT.glob("packages/*")))
    parser.add_argument("fresh", type=Path, help="standard output of its benchmarks")
    parser.add_argument("--accept", action="store_true", help="write the results instead")
    parser.add_argument("--summary", type=Path, help="a file to which one line is added")
    asked = parser.parse_args()
    results = ROOT / "packages" / asked.package / "benchmarks" / "results"
    fresh = read(asked.fresh)
    if asked.accept:
        print("\n".join(f"wrote {file.relative_to(ROOT)}" for file in accept(fresh, results)))
        return 0
    accepted = [line for file in sorted(results.glob("*.jsonl")) for line in read(file)]
    drifts, notes = compare(accepted, fresh)
    worse = [d for d in drifts if d.worse]
    better = len(drifts) - len(worse)
    summary = f"{asked.package}: {len(fresh)} lines, {len(worse)} worse, {better} better"
    print("\n".join([*notes, *([table(drifts)] if drifts else []), summary]))
    if asked.summary:
        more = "; ".join(n for n in notes if n.startswith("none"))
        with asked.summary.open("a", encoding="utf-8") as file:
            file.write(f"- {summary}{'; ' if more else ''}{more}\n")
            file.write(f"\n{table(worse)}\n\n" if worse else "")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
