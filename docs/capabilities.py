# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/capabilities.md: each capability, with a test that proves it.

A test declares its row with the marker `capability("name", on="cpu")`; "cuda" and "tpu" stand for
lowering only. A GPU is named where a session on record ran a step that lists the row as `proves`.
"""

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import accelerator_step
import workspace

TABLES = workspace.ROOT / "docs" / "generated" / "capabilities.txt"  # git ignores it
TOGETHER = "integration_tests"  # in place of a package
COLUMNS = {"cpu": "", "cuda": "lowered for CUDA", "tpu": "lowered for TPU"}
LATE = {f"pytest.mark.{name}" for name in ("thorough", "slow", "parity", "tpu", "triton")}

Key = tuple[str, str]  # package and capability
Proof = tuple[tuple[str, ...], str, bool]  # columns, test, whether it is fast


def declared(source: str) -> Iterator[tuple[str, Proof]]:
    """Yields the capabilities of the tests of a file, by their own markers and `pytestmark`."""
    shared: list[ast.AST] = []
    for node in ast.parse(source).body:
        name = getattr(node, "name", "")
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
        if name == "pytestmark":
            shared = [node]
        if not name.startswith(("test", "Test")):
            continue
        marks = [*shared, *getattr(node, "decorator_list", [])]
        named = [n for mark in marks for n in ast.walk(mark) if isinstance(n, ast.Attribute)]
        late = LATE & {ast.unparse(n) for n in named}
        # A method of a class may have markers too.
        for call in (n for top in [*shared, node] for n in ast.walk(top)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.capability":
                on = [ast.literal_eval(keyword.value) for keyword in call.keywords] or ["cpu"]
                columns = (on[0],) if isinstance(on[0], str) else on[0]
                yield ast.literal_eval(call.args[0]), (columns, name, not late)


def proofs() -> dict[Key, list[Proof]]:
    """Returns the proofs of each capability, with the paths of the tests."""
    rows, root = {}, workspace.ROOT
    for folder in [*sorted(root.glob("packages/*/tests")), root / TOGETHER]:
        package = TOGETHER if folder.name == TOGETHER else folder.parent.name
        for file in sorted(folder.rglob("test_*.py")):
            path = file.relative_to(root).as_posix()
            for name, (columns, test, fast) in declared(file.read_text(encoding="utf-8")):
                rows.setdefault((package, name), []).append((columns, f"{path}::{test}", fast))
    return rows


def devices(root: Path, steps: Mapping[str, accelerator_step.Step]) -> dict[Key, set[str]]:
    """Returns the devices that ran a capability's `steps` with full shapes, by the records."""
    ran: dict[Key, set[str]] = {}
    for file in sorted(root.glob("docs/results/accelerator*.json")):
        session = json.loads(file.read_text(encoding="utf-8"))
        full = session["platform"] != "cpu" and not session["tiny"]
        for step, entry in session["steps"].items():
            if full and step in steps and entry["outcome"] == "done" and not entry["failed"]:
                for name in steps[step].proves:
                    ran.setdefault((step.split(".")[0], name), set()).add(session["device"])
    return ran


def tables(rows: Mapping[Key, list[Proof]], ran_on: Mapping[Key, set[str]]) -> str:
    """Returns a table per package. Fast tests that run on a CPU are named before others."""
    text, last = "", ""
    for (package, name), proved in rows.items():
        if package != last:
            title = "Several packages together" if package == TOGETHER else f"dovetail-{package}"
            text += f"\n## {title}\n\n| capability | proved by |\n|---|---|\n"
            last = package
        _, test, _ = min(proved, key=lambda proof: (not proof[2], "cpu" not in proof[0]))
        lowered = {COLUMNS[column] for columns, *_ in proved for column in columns} - {""}
        gpus = [f"run on {device}" for device in sorted(ran_on.get((package, name), ()))]
        text += f"| {name} | {', '.join([f'`{test}`', *sorted(lowered), *gpus])} |\n"
    return text


def write() -> None:
    """Writes the tables, whenever the documentation is built."""
    TABLES.parent.mkdir(parents=True, exist_ok=True)
    ran_on = devices(workspace.ROOT, accelerator_step.catalog())
    TABLES.write_text(tables(proofs(), ran_on), encoding="utf-8")
