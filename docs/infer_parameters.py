# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every option of a request and of an engine, with the tests that hold it.

A test names the options that it proves with the marker `parameter("top_k", "top_p")`, and those
whose bad values it sees refused with `parameter("top_k", refuses=True)`. The markers are read from
the sources of the tests, so the page is as new as they are.
"""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dovetail_infer import Engine, Sampling

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/packages/infer_parameters.md"  # git ignores it
TESTS = ("packages/infer/tests/**/test_*.py", "integration_tests/test_infer_*.py")
HEAD = """---
orphan: true
---

# Parameters of dovetail-infer

An option is honoured or refused with a message that names it. Each row lists the tests that would
fail otherwise, as `file: test`.
"""


class Proof(NamedTuple):
    """A test of an option.

    Attributes:
        test: "FILE: NAME" of the test.
        refuses: Whether the test sees bad values refused.
    """

    test: str
    refuses: bool


def options() -> dict[str, dict[str, str]]:
    """The options by owner, with their defaults as Python writes them."""
    signature = inspect.signature(Engine.__init__)
    engine = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {
        "Sampling": {field.name: _default(field) for field in dataclasses.fields(Sampling)},
        "Engine": {p.name: _shown(p.default) for p in engine},
    }


def proofs(root: Path = ROOT) -> dict[str, list[Proof]]:
    """The tests of each option that carry the marker.

    Raises:
        ValueError: A name is no literal.
    """
    result: dict[str, list[Proof]] = {}
    for file in sorted(file for pattern in TESTS for file in root.glob(pattern)):
        for test, decorators in _tests(ast.parse(file.read_text(encoding="utf-8"))):
            for name, refuses in _marked(decorators):
                result.setdefault(name, []).append(Proof(f"{file.stem}: {test}", refuses))
    return result


def write() -> None:
    """Writes the page."""
    tests = proofs()
    lines = [HEAD]
    for owner, defaults in options().items():
        lines += [
            f"## {owner}\n",
            "| option | default | honoured by | refused by |",
            "|---" * 4 + "|",
        ]
        for name, default in defaults.items():
            cells = [
                "<br>".join(f"`{p.test}`" for p in tests.get(name, []) if p.refuses == refuses)
                for refuses in (False, True)
            ]
            lines.append(f"| `{name}` | `{default}` | {cells[0]} | {cells[1]} |")
        lines.append("")
    PAGE.write_text("\n".join(lines), encoding="utf-8")


def _tests(module: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda node: node.lineno):
        if node.name.startswith("test_"):
            yield node.name, node.decorator_list


def _marked(decorators: list[ast.expr]) -> Iterator[tuple[str, bool]]:
    for node in decorators:
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.mark.parameter":
            continue
        try:
            names = [ast.literal_eval(argument) for argument in node.args]
            keywords = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
        except ValueError:
            names, keywords = [], {}
        if not names or not keywords.keys() <= {"refuses"}:
            raise ValueError(
                f"a marker must have literal names; got {ast.unparse(node)}; write "
                "pytest.mark.parameter('top_k', refuses=True)"
            )
        for name in names:
            yield name, keywords.get("refuses", False)


def _default(field: dataclasses.Field) -> str:
    made = field.default_factory
    return repr(field.default if isinstance(made, type(dataclasses.MISSING)) else made())


def _shown(value: object) -> str:
    return value.__name__.rpartition(".")[2] if inspect.ismodule(value) else repr(value)
