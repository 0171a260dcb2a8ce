# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The reader of a run's `Jsonl` file: its metrics over restarts.

Imports nothing of this package, so a program that only reads runs need not import JAX.
"""

import json
from pathlib import Path
from typing import Any

_NOT_FINITE = ("nan", "inf", "-inf")


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Returns one dict per step, in order, merged from the last generation that reached the step.

    A generation that starts after step 0 continues from what was saved at its first step. Earlier
    lines of that step, such as an evaluation, describe the same state and stay, unless the new
    generation has other values. An incomplete last line is left out.

    Raises ValueError for any other line not written by `Jsonl`.
    """
    data = Path(path).read_bytes()
    steps: dict[int, dict[str, Any]] = {}
    first: dict[int, int] = {}
    for line in parse(data[: data.rfind(b"\n") + 1], Path(path)):
        step = line["step"]
        seen = steps.get(step, line)
        begun = first.setdefault(line["generation"], step)
        same = seen["generation"] == line["generation"] or step == begun > 0
        steps[step] = seen | line if same else line
    return [steps[step] for step in sorted(steps)]


def parse(data: bytes, path: Path) -> list[dict[str, Any]]:
    """Returns the lines in order. Raises ValueError for a line not written by `Jsonl`.

    The words "nan", "inf" and "-inf", as dovetail-runs writes such numbers, are None.
    """
    lines = []
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or not {"step", "generation"} <= line.keys():
            raise ValueError(
                f"each line must be a JSON object with step and generation, got "
                f"{path}:{number}: {text[:60]!r}; remove that line or pass another path"
            )
        lines.append({k: None if v in _NOT_FINITE else v for k, v in line.items()})
    return lines
