# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The fast tier proves each capability and uses each public name."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import workspace

pytestmark = pytest.mark.once

ROOT = workspace.ROOT
MEMBERS = workspace.members()
APART = {"slow", "parity", "tpu", "triton"}
MARK = re.compile(r"""pytest\.mark\.(\w+)(?:\(\s*['"](.*?)['"]\s*[,)])?""")


@dataclasses.dataclass(frozen=True)
class Function:
    """A test function, as its text shows it.

    Args:
        name: Node id, without a case.
        marks: Names of its marks, those of its file included.
        reasons: Arguments of its mark `thorough`.
        capabilities: Arguments of its marks `capability`.
        words: Words of its text, and of the fixtures and helpers that it names.
    """

    name: str
    marks: frozenset[str]
    reasons: frozenset[str]
    capabilities: frozenset[str]
    words: frozenset[str]

    @property
    def is_fast(self) -> bool:
        return not self.marks & {"thorough", *APART}


def functions(file: Path) -> list[Function]:
    """The test functions of a file."""
    source = file.read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    definitions = {}
    for folder in [*file.parent.parents, file.parent]:
        if folder.is_relative_to(ROOT) and (folder / "conftest.py").exists():
            definitions |= words_by_name((folder / "conftest.py").read_text(encoding="utf-8"))
    definitions |= words_by_name(source)
    for program in (file.parent / "programs").glob("*.py"):
        text = program.read_text(encoding="utf-8")
        definitions.setdefault(program.stem, set(re.findall(r"\w+", text)))
    of_file = marks([n for n in tree.body if is_pytestmark(n)], lines)
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.startswith("Test")]
    found = function_list(tree, f"{file.relative_to(ROOT)}", of_file, definitions, lines)
    for node in classes:
        name = f"{file.relative_to(ROOT)}::{node.name}"
        own = of_file + marks(node.decorator_list, lines)
        found += function_list(node, name, own, definitions, lines)
    return found


def function_list(parent, prefix, inherited, definitions, lines) -> list[Function]:
    """The test functions of a module or class."""
    found = []
    for node in parent.body:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not is_function or not node.name.startswith("test_"):
            continue
        own = inherited + marks(node.decorator_list, lines)
        words = words_of(node, lines)
        found.append(
            Function(
                name=f"{prefix}::{node.name}",
                marks=frozenset(name for name, _ in own),
                reasons=frozenset(a for name, a in own if name == "thorough" and a),
                capabilities=frozenset(a for name, a in own if name == "capability"),
                words=frozenset(closure(words, definitions)),
            )
        )
    return found


def is_pytestmark(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "pytestmark"


def text_of(node: ast.AST, lines: list[str]) -> str:
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


def words_of(node: ast.AST, lines: list[str]) -> set[str]:
    return set(re.findall(r"\w+", text_of(node, lines)))


def marks(nodes: list[ast.AST], lines: list[str]) -> list[tuple[str, str]]:
    """The marks of decorators and of `pytestmark`, each with its first argument if a string."""
    found = []
    for node in nodes:
        every = MARK.findall(text_of(node, lines))
        found += every if isinstance(node, ast.Assign) else every[:1]  # not those of single cases
    return found


def words_by_name(source: str) -> dict[str, set[str]]:
    """The words of each definition of a module, by its name."""
    found, lines = {}, source.splitlines()
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        for target in targets:
            if name := getattr(target, "name", None) or getattr(target, "id", None):
                found[name] = found.get(name, set()) | words_of(node, lines)
    return found


def closure(words: set[str], definitions: dict[str, set[str]]) -> set[str]:
    """The words, and those of the definitions that they name."""
    words, known = set(words), set()
    while waiting := (words & definitions.keys()) - known:
        known |= waiting
        words = words.union(*(definitions[name] for name in waiting))
    return words


def public_names(folder: str) -> set[str]:
    """The names in `__all__` of a package and of its public sub-packages."""
    names = set()
    source = MEMBERS[folder].path / "src" / MEMBERS[folder].module
    for file in source.rglob("__init__.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
            if getattr(target, "id", "") == "__all__":
                names |= set(ast.literal_eval(node.value))
    return names


def suites() -> dict[str, list[Function]]:
    folders = {f: m.path / "tests" for f, m in MEMBERS.items()}
    folders["integration_tests"] = ROOT / "integration_tests"
    return {
        name: [f for file in sorted(folder.rglob("test_*.py")) for f in functions(file)]
        for name, folder in folders.items()
    }


SUITES = suites()


@pytest.mark.parametrize("folder", SUITES)
def test_each_capability_has_a_fast_test_or_a_reason(folder):
    fast = {c for f in SUITES[folder] if f.is_fast for c in f.capabilities}
    reasoned = {c for f in SUITES[folder] if f.reasons or f.marks & APART for c in f.capabilities}
    every = {c for f in SUITES[folder] for c in f.capabilities}
    assert sorted(every - fast - reasoned) == []


@pytest.mark.parametrize("folder", sorted(MEMBERS))
def test_each_public_name_is_in_a_fast_test(folder):
    # Results and protocols may be used without their names.
    own = [f for f in SUITES[folder] if not f.marks & APART]
    used = set().union(*(f.words for f in own))
    proved = set().union(*(f.words for f in own if f.is_fast or f.reasons))
    assert sorted((public_names(folder) & used) - proved) == []
