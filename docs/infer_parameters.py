# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every option of a request, of an engine and of a body over HTTP, with the tests that hold it.

A test names the options that it proves with the marker `parameter("top_k", "top_p")`, and those
whose bad values it sees refused with `parameter("top_k", refuses=True)`. The markers are read from
the sources of the tests, so the page is as new as they are.
"""

import ast
import dataclasses
import inspect
import json
import unittest.mock
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from dovetail_infer import Engine, Sampling
from dovetail_infer.server.bodies import requests
from dovetail_infer.server.fields import Fields

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/packages/infer_parameters.md"  # git ignores it
TESTS = ("packages/infer/tests/**/test_*.py", "integration_tests/test_infer_*.py")
HTTP = "Completions and chats over HTTP"
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
        HTTP: {f"request.{name}": must for name, must in request_fields().items()},
    }


class Recording(Fields):
    """Notes the fields that are read, and what each must be."""

    seen: ClassVar[dict[str, str]] = {}

    def take(self, name: str, must: str, default: Any = None) -> Any:
        self.seen.setdefault(self.name(name), must)
        return super().take(name, must, default)

    def only(self, name: str, allowed: Collection[Any], advice: str) -> None:
        self.seen[self.name(name)] = " or ".join([*map(json.dumps, allowed), "absent"])
        super().only(name, allowed, advice)


def request_fields() -> dict[str, str]:
    """The fields of completions and chats, as the server reads them, with what each must be."""
    models = unittest.mock.Mock()
    models.adapter_id.return_value = None
    options: dict[str, Any] = {"models": models, "defaults": Sampling()}
    given = {"model": "it", "stream": True, "stream_options": {}, "logit_bias": {}}
    talk = {"messages": [{"role": "user", "content": "a"}]}
    routes = {"completions": {"prompt": "a"}, "chats": talk}
    read: dict[str, dict[str, str]] = {}
    for route, body in routes.items():
        Recording.seen = read[route] = {}
        parse = requests.completion if route == "completions" else requests.chat
        with unittest.mock.patch.object(requests, "Fields", Recording):
            parse({**given, **body}, **options)
    completion, chat = read.values()
    both = completion.keys() & chat.keys()
    other = {
        name: ", ".join(f"{seen[name]} ({route})" for route, seen in read.items())
        for name in both
        if completion[name] != chat[name]
    }
    fields = {**completion, **chat, **other}
    return {name: must for name, must in fields.items() if not name.startswith("messages[")}


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
            f"| option | {'value' if owner == HTTP else 'default'} | honoured by | refused by |",
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
