#!/usr/bin/env python3
# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the language of the packages: docstrings, `Args:` sections, names of results.

Run `python scripts/voice.py [FOLDER ...]` for one line per finding. docs/develop/writing.md has the
rules. It reads syntax trees and imports nothing.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from workspace import ROOT

RELATIVE_LIMIT = 20.0  # per 1,000 words of docstrings; Optax has 9, Equinox 14
RELATIVE = re.compile(r"\b(that|which|what|where)\b", re.IGNORECASE)
OPENERS = ("What ", "Which ", "Where ")
EMPTY_NAMES = {"found", "one", "part", "told", "here"}
SECTION = re.compile(r"^(Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE)
# A decorator of this name adds to a docstring the arguments that a prototype explains, and fails
# for an argument that neither explains.
INHERITS = re.compile(r"\bbuilder\b")
# Calls that declare a field with its help: see `recipes/options.py` of the stack.
DECLARES = {"declared", "needed", "switch", "typed"}
ENTRY = re.compile(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: ast.AST) -> list[str]:
    a = function.args
    names = [*a.posonlyargs, *a.args, *[v for v in (a.vararg, a.kwarg) if v], *a.kwonlyargs]
    return [n.arg for n in names if n.arg not in ("self", "cls") and not n.arg.startswith("_")]


def fields(node: ast.ClassDef) -> list[str]:
    """Returns the constructor's parameters: those of `__init__`, else a dataclass's fields.

    A field with a help of its own needs no second text in the docstring.
    """
    for function in (f for f in node.body if getattr(f, "name", "") == "__init__"):
        return parameters(function)
    shown = " ".join(ast.unparse(d) for d in [*node.decorator_list, *node.bases])
    if not re.search(r"dataclass|NamedTuple|nnx\.Module|struct", shown):
        return []
    annotated = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    kept = [n for n in annotated if "ClassVar" not in ast.unparse(n.annotation)]
    kept = [n for n in kept if getattr(getattr(n.value, "func", None), "id", "") not in DECLARES]
    names = [n.target.id for n in kept if not (n.value and "init=False" in ast.unparse(n.value))]
    return [n for n in names if not n.startswith("_")]


def public(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yields functions and classes without a leading underscore, with their methods."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{child.name}.")


def explained(docstring: str) -> set[str]:
    """Returns the names that the sections `Args:` and `Attributes:` explain."""
    body = "\n".join(m[2] for m in SECTION.finditer(docstring + "\n"))
    return {n.strip(" *") for entry in ENTRY.findall(body) for n in entry.split(",")}


def check_signatures(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    for name, node in public(tree):
        shown = ast.unparse(node.decorator_list) if node.decorator_list else ""
        docstring = ast.get_docstring(node)
        names = fields(node) if isinstance(node, ast.ClassDef) else parameters(node)
        if docstring is None:
            # A method may take its docstring from a protocol or base.
            if "." not in name and "overload" not in shown:
                yield node.lineno, "undocumented", name
        elif (
            len(names) >= 3
            and not INHERITS.search(shown)
            and (missing := [n for n in names if n not in explained(docstring)])
        ):
            yield node.lineno, "args", f"{name}: {', '.join(missing)}"
        elif isinstance(node, Function) and (extra := explained(docstring) - set(names)):
            yield node.lineno, "absent", f"{name}: {', '.join(sorted(extra))}"


def check_results(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    stored = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    rejected = any(n.id == "rejected" for n in ast.walk(tree) if isinstance(n, ast.Name))
    for node in stored:
        if node.id in EMPTY_NAMES or (node.id == "chosen" and not rejected):
            yield node.lineno, "result", node.id


def check(file: Path) -> tuple[int, list[tuple[int, str, str]]]:
    """Returns the words of the file's docstrings and its findings: line, kind, text."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    findings, words = [*check_signatures(tree), *check_results(tree)], 0
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | Function)
        docstring = (documented and ast.get_docstring(node)) or ""
        line = getattr(node, "lineno", 1)
        words += len(re.findall(r"[A-Za-z][\w'-]*", docstring))
        findings += [(line, "relative", w) for w in RELATIVE.findall(docstring)]
        if docstring.startswith(OPENERS):
            findings.append((line, "opener", docstring.splitlines()[0]))
    return words, sorted(findings)


def main(folders: list[str]) -> int:
    """Prints the findings of each folder; 1 if there are any."""
    failed = False
    for folder in map(Path, folders or sorted(ROOT.glob("packages/*/src"))):
        results = {os.path.relpath(file): check(file) for file in sorted(folder.rglob("*.py"))}
        findings = [(file, *entry) for file, (_, entries) in results.items() for entry in entries]
        words = sum(count for count, _ in results.values())
        share = 1000 * sum(kind == "relative" for _, _, kind, _ in findings) / max(words, 1)
        print(f"{os.path.relpath(folder)}: {words} words, {share:.1f} of 1,000 are relative")
        wrong = [x for x in findings if x[2] != "relative" or share > RELATIVE_LIMIT]
        for file, line, kind, text in wrong:
            print(f"{file}:{line}: {kind}: {text}")
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
