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
Marker = tuple[str, tuple[str, ...], str, bool]  # capability, columns, test, whether it is fast


def declared(source: str) -> Iterator[Marker]:
    """The markers of each test of a file, those of the whole file included.

    Raises:
        ValueError: A marker is on no test, holds no literal name, or names an unknown column.
    """
    body = ast.parse(source).body
    values = {ast.unparse(n.targets[0]): n for n in body if isinstance(n, ast.Assign)}
    names = {id(node): name for name, node in values.items()}
    shared = [values["pytestmark"].value] if "pytestmark" in values else []
    marks = [mark for value in shared for mark in getattr(value, "elts", [value])]
    for node in body:
        test, own = getattr(node, "name", names.get(id(node), "")), _calls(node)
        if test.startswith(("test", "Test")):
            above = [*marks, *getattr(node, "decorator_list", [])]
            fast = not LATE & {ast.unparse(mark).partition("(")[0] for mark in above}
            for call in [*(c for mark in marks for c in _calls(mark)), *own]:
                yield *_read(call), test, fast
        elif own and test != "pytestmark":
            raise ValueError(
                f"a marker must be on a test or be pytestmark; got {ast.unparse(node)}"
            )


def _calls(node: ast.AST) -> list[ast.Call]:
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return [n for n in calls if ast.unparse(n.func) == "pytest.mark.capability"]


def _read(call: ast.Call) -> tuple[str, tuple[str, ...]]:
    try:
        (name,) = map(ast.literal_eval, call.args)
        on = {k.arg: ast.literal_eval(k.value) for k in call.keywords}.get("on", "cpu")
        columns = (on,) if isinstance(on, str) else tuple(on)
    except (TypeError, ValueError):
        name, columns = None, ()
    if not isinstance(name, str) or not columns or not set(columns) <= COLUMNS.keys():
        raise ValueError(
            f"a marker must hold a literal name and columns of {', '.join(COLUMNS)}; got "
            f"{ast.unparse(call)}; write pytest.mark.capability('name', on='cuda')"
        )
    return name, columns


def markers(root: Path = workspace.ROOT) -> dict[Key, list[Marker]]:
    """The markers in the sources of all tests, with the paths of the tests."""
    found: dict[Key, list[Marker]] = {}
    for folder in [*sorted(root.glob("packages/*/tests")), root / TOGETHER]:
        package = TOGETHER if folder.name == TOGETHER else folder.parent.name
        for file in sorted(folder.rglob("test_*.py")):
            for name, columns, test, fast in declared(file.read_text(encoding="utf-8")):
                path = f"{file.relative_to(root).as_posix()}::{test}"
                found.setdefault((package, name), []).append((name, columns, path, fast))
    return found


def devices(root: Path, steps: Mapping[str, accelerator_step.Step]) -> dict[Key, set[str]]:
    """The devices that ran a capability's `steps` with full shapes, in the sessions on record."""
    found: dict[Key, set[str]] = {}
    for file in sorted(root.glob("docs/results/accelerator*.json")):
        session = json.loads(file.read_text(encoding="utf-8"))
        ended = session["steps"] if session["platform"] != "cpu" and not session["tiny"] else {}
        for step, entry in ended.items():
            if step in steps and entry["outcome"] == "done" and not entry["failed"]:
                for name in steps[step].proves:
                    found.setdefault((step.split(".")[0], name), set()).add(session["device"])
    return found


def tables(found: Mapping[Key, list[Marker]], ran_on: Mapping[Key, set[str]]) -> str:
    """A table per package. A fast test that runs on a CPU stands for a row before others."""
    text, last = "", ""
    for (package, name), rows in found.items():
        if package != last:
            title = "Several packages together" if package == TOGETHER else f"dovetail-{package}"
            text += f"\n## {title}\n\n| capability | proved by |\n|---|---|\n"
            last = package
        *_, test, _ = min(rows, key=lambda row: (not row[3], "cpu" not in row[1]))
        lowered = {COLUMNS[column] for row in rows for column in row[1]} - {""}
        gpus = [f"run on {device}" for device in sorted(ran_on.get((package, name), ()))]
        text += f"| {name} | {', '.join([f'`{test}`', *sorted(lowered), *gpus])} |\n"
    return text


def write() -> None:
    """Writes the tables, whenever the documentation is built."""
    TABLES.parent.mkdir(parents=True, exist_ok=True)
    ran_on = devices(workspace.ROOT, accelerator_step.catalog())
    TABLES.write_text(tables(markers(), ran_on), encoding="utf-8")
