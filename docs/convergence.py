# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of what each optimizer reached, from the lines that its benchmark recorded."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STACK = ROOT / "packages/stack/benchmarks"
PAGE = ROOT / "docs/packages/measured/convergence.md"  # git ignores it
HEAD = (
    "| | held-out loss | less than AdamW | peak rate | loss of one seed by peak rate |\n"
    "|---|---|---|---|---|\n"
)


def write() -> None:
    """The page: the benchmark's own words, and a row for each line on record."""
    recorded = (STACK / "results/optimizers.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in recorded.splitlines()]
    script = (STACK / "optimizers.py").read_text(encoding="utf-8")
    (about,) = re.findall(r'^"""(.*?)"""', script, re.DOTALL | re.M)[:1]
    rows = "".join(_row(line, base=lines[0]["mean"]) for line in lines)
    loss = "Loss is the mean over seeds and their standard deviation, in nats per token."
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(f"# Convergence\n\n{about.strip()}\n\n{loss}\n\n{HEAD}{rows}", encoding="utf-8")


def _row(line: dict[str, Any], *, base: float) -> str:
    tried = ", ".join(f"{peak}: {loss:.3f}" for peak, loss in line["tried"].items())
    cells = (
        line["case"],
        f"{line['mean']:.3f} ± {line['standard_deviation']:.3f}",
        f"{base - line['mean']:.3f}",
        f"{line['peak_rate']}",
        tried or "AdamW's own",
    )
    return "| " + " | ".join(cells) + " |\n"
