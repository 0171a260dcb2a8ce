# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of times on a GPU, from the results of `scripts/accelerator`."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/generated/on_a_gpu.txt"  # git ignores it
SHARES = {"flops_share_of_peak": "products", "bytes_share_of_peak": "memory", "mfu": "products"}
UNITS = {"wall_s": (1e3, "ms"), "gb_per_s": (1.0, "GB/s")}
HEAD = ("operation", "time", "share of the limit", "peer", "ratio", "noise", "GPU")


def write() -> None:
    """Writes a table for each package, with the lines of the newest run of each step."""
    text = ""
    for file in sorted(ROOT.glob("packages/*/benchmarks/results/accelerator.jsonl")):
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        timed = [x for x in lines if x["metric"] in UNITS and "NVIDIA" in x["device"]]
        newest: dict[str, str] = {}  # of each step of the session
        for line in timed:
            newest[line["command"]] = max(line["date"], newest.get(line["command"], ""))
        rows = [_row(line) for line in timed if line["date"] == newest[line["command"]]]
        if rows:
            text += f"\n### dovetail-{file.parts[-4]}\n\n{_table(rows)}"
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(text, encoding="utf-8")


def _table(rows: list[list[str]]) -> str:
    """Returns a table without the columns that no row has."""
    kept = [column for column in zip(HEAD, *rows, strict=True) if any(column[1:])]
    head, *lines = (f"| {' | '.join(cells)} |\n" for cells in zip(*kept, strict=True))
    return f"{head}{'|---' * len(kept)}|\n{''.join(lines)}"


def _row(line: dict[str, Any]) -> list[str]:
    factor, unit = UNITS[line["metric"]]
    shares = [f"{line[name]:.2f} of {limit}" for name, limit in SHARES.items() if line.get(name)]
    peer = line["peer"] or ""
    cells = [
        line["case"].removesuffix(f", against {peer}"),
        f"{factor * line['value']:.3g} {unit}",
        ", ".join(shares),
        peer,
        *("" if line[name] is None else f"{line[name]:.2f}" for name in ("ratio", "noise")),
        line["device"].removeprefix("NVIDIA ").split()[0],
    ]
    return [cell.replace("|", "/") for cell in cells]
