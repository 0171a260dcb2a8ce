# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""docs/features.md: each capability, with the tests that passed on each kind of device.

A test declares its row and column with the marker `capability("name", on="cpu")`; "cuda" and "tpu"
stand for lowering only. A cell counts the tests that carry the marker today and passed in a run on
record (scripts/suite_results.py). The column of GPUs is filled by sessions of scripts/accelerator
on record, for the rows that a step lists as `proves`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import accelerator_step
import suite_results
import workspace

PAGE = workspace.ROOT / "docs" / "features.md"
SESSIONS = workspace.ROOT / "docs" / "results"  # accelerator*.json, written with --state
COLUMNS = {"cpu": "tested on CPU", "cuda": "lowered for CUDA", "tpu": "lowered for TPU"}
NOT_RUN = "not run"

Marks = dict[str, dict[str, set[str]]]  # columns by package and capability

INTRODUCTION = """# Features

Each row is a capability, each number a count of tests that passed with the pinned versions, the
lowest or the newest. Lowered means: JAX compiled the program for that device as far as it can
without the device. A GPU counts only if a session of `scripts/accelerator` ran the capability
there. Nothing is filled in by hand: the markers of the tests name rows and columns, and
`python scripts/tables.py` writes this page from results on record.
"""


def marks(root: Path = workspace.ROOT) -> Marks:
    """The markers in the sources of all tests, {package: {capability: {"cpu", "cuda"}}}."""
    found: Marks = {}
    for folder in [*sorted(root.glob("packages/*/tests")), root / suite_results.TOGETHER]:
        package = folder.name if folder.parent == root else folder.parent.name
        for file in sorted(folder.rglob("test_*.py")):
            for name, columns in declared(file.read_text(encoding="utf-8")):
                found.setdefault(package, {}).setdefault(name, set()).update(columns)
    return found


def declared(source: str) -> list[tuple[str, tuple[str, ...]]]:
    """The capabilities and columns of each marker in a test file.

    Raises:
        ValueError: A name or column is no literal, or a column is unknown.
    """
    result = []
    for node in ast.walk(ast.parse(source)):
        named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if not named or ast.unparse(node.func) != "pytest.mark.capability":
            continue
        try:
            (name,) = (ast.literal_eval(argument) for argument in node.args)
            options = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
        except ValueError:
            name, options = None, {}
        columns = suite_results.as_columns(options.get("on", "cpu"))
        if not isinstance(name, str) or not columns or not set(columns) <= COLUMNS.keys():
            raise ValueError(
                f"a marker must hold a literal name and columns of {', '.join(COLUMNS)}; got "
                f"{ast.unparse(node)}; write pytest.mark.capability('name', on='cuda')"
            )
        result.append((name, columns))
    return result


def sessions(folder: Path = SESSIONS) -> list[dict[str, Any]]:
    """The accelerator sessions on record with full shapes."""
    files = sorted(folder.glob("accelerator*.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [state for state in found if state["platform"] != "cpu" and not state["tiny"]]


def ran_on(proofs: dict[str, tuple[str, ...]], states: Iterable[dict[str, Any]]) -> dict:
    """The devices that ran each (package, capability), {("kernels", "sampling"): {"H100"}}.

    Args:
        proofs: The capabilities that each step proves, by "package.step".
        states: Sessions, as `sessions` returns them.
    """
    devices: dict[tuple[str, str], set[str]] = {}
    for state in states:
        for step, entry in state["steps"].items():
            if entry["outcome"] == "done" and not entry["failed"]:
                for name in proofs.get(step, ()):
                    devices.setdefault((step.split(".")[0], name), set()).add(state["device"])
    return devices


def page(
    found: Marks,
    lines: Sequence[suite_results.Line],
    devices: dict[tuple[str, str], set[str]],
) -> str:
    """The page, from the markers, the results on record and the devices of `ran_on`."""
    text = INTRODUCTION
    head = f"| capability | {' | '.join(COLUMNS.values())} | run on a GPU |\n" + "|---" * 5 + "|\n"
    for package, rows in found.items():
        text += f"\n## {suite_results.title(package)}\n\n{head}"
        for name, columns in rows.items():
            cells = [_cell(package, name, c, lines) if c in columns else "" for c in COLUMNS]
            ran = ", ".join(sorted(devices.get((package, name), ())))
            text += f"| {name} | {' | '.join(cells)} | {ran or 'not yet run'} |\n"
    return text


def _cell(package: str, name: str, column: str, lines: Sequence[suite_results.Line]) -> str:
    """The outcome of the runs that passed or failed most tests with this marker."""
    counts = [
        line["capabilities"][name][column]
        for line in lines
        if line["package"] == package and column in line["capabilities"].get(name, {})
    ]
    failed = max((count["failed"] for count in counts), default=0)
    if failed:
        return f"**{failed} failed**"
    passed = max((count["passed"] for count in counts), default=0)
    return str(passed) if passed else ("skipped" if counts else NOT_RUN)


def proofs() -> dict[str, tuple[str, ...]]:
    """The capabilities that each step of the accelerator session proves."""
    return {name: step.proves for name, step in accelerator_step.catalog().items()}


def current() -> str:
    """The page as it must be now."""
    return page(marks(), suite_results.read(), ran_on(proofs(), sessions()))
