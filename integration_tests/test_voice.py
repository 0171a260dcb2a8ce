# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The language and the public surface of every package; docs/develop/writing.md."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import voice
import workspace

pytestmark = pytest.mark.once

MEMBERS = list(workspace.members().values())
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)(?:\([^`]*\))?`")  # `Store.save(step)`

each = pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.folder)


def public(package: ModuleType) -> dict[str, Any]:
    return {name: getattr(package, name) for name in package.__all__}


@each
def test_docstrings_and_names_of_results(member):
    files = sorted(member.path.glob("src/**/*.py"))
    results = {file: voice.check(file) for file in files}
    words = sum(count for count, _ in results.values())
    kinds = [kind for _, findings in results.values() for _, kind, _ in findings]
    assert 1000 * kinds.count("relative") / words <= voice.RELATIVE_LIMIT
    assert [
        f"{file.relative_to(voice.ROOT)}:{line}: {kind}: {text}"
        for file, (_, findings) in results.items()
        for line, kind, text in findings
        if kind != "relative"
    ] == []


@each
def test_help_starts_with_a_program_and_the_topics(member):
    package = importlib.import_module(member.module)
    assert package.__version__ == version(member.name)
    assert ">>>" in package.__doc__ or not package.__all__
    exported = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert exported <= set(package.__all__)
    assert [name for name in package.__all__ if f'"{name}",' not in grouped(package)] == []


def grouped(package: ModuleType) -> str:
    """Returns the lines of `__all__` from the first topic on."""
    source = inspect.getsource(package)
    listed = source[source.index("__all__ = [") :]
    return listed[listed.index("    # ") :] if "    # " in listed else ""


@each
def test_signatures_are_readable(member):
    walls = []
    for value in public(importlib.import_module(member.module)).values():
        held = vars(value).values() if inspect.isclass(value) else [value]
        functions = [f for f in held if inspect.isfunction(f)]
        ours = [f for f in functions if f.__module__.startswith("dovetail_")]
        shown = {f.__qualname__: str(inspect.signature(f)) for f in ours if is_public(f.__name__)}
        walls += [n for n, s in shown.items() if s.count("jaxlib") > 1 or len(s) > 900]
    assert walls == []


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__call__")


def documents(member: workspace.Member) -> Iterator[tuple[Path, str, ModuleType]]:
    """Yields the texts that name things: docstrings, and the package's README and page."""
    package = importlib.import_module(member.module)
    for file in sorted(member.path.glob("src/**/*.py")):
        path = file.relative_to(member.path / "src").with_suffix("")
        parts = [part for part in path.parts if part != "__init__"]
        if parts[-1] == "__main__":
            continue
        module = importlib.import_module(".".join(parts))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | voice.Function):
                yield file, ast.get_docstring(node) or "", module
    pages = [member.path / "README.md", voice.ROOT / f"docs/packages/{member.folder}.md"]
    pages += [voice.ROOT / "README.md", voice.ROOT / "CONTRIBUTING.md"]
    pages += sorted(voice.ROOT.glob("docs/develop/*.md"))
    yield from ((page, page.read_text(), package) for page in pages)


def exists(parts: list[str], module: ModuleType) -> bool:
    """Whether a dotted name leads somewhere. A name that is nobody's class is not judged."""
    if parts[0].startswith("dovetail_"):
        return leads(importlib.import_module(parts[0]), parts[1:])
    packages = [importlib.import_module(m.module) for m in MEMBERS]
    owners = [vars(m).get(parts[0]) for m in (module, *packages)]
    classes = [o for o in owners if inspect.isclass(o) and o.__module__.startswith("dovetail_")]
    return not classes or any(leads(owner, parts[1:]) for owner in classes)


def leads(owner: Any, parts: list[str]) -> bool:
    for part in parts:
        if inspect.ismodule(owner) and not hasattr(owner, part):
            try:
                importlib.import_module(f"{owner.__name__}.{part}")
            except ImportError:
                return False
        if not hasattr(owner, part):
            fields = [*getattr(owner, "__annotations__", ()), *getattr(owner, "_fields", ())]
            source = inspect.getsource(owner) if inspect.isclass(owner) else ""
            return part in fields or bool(re.search(rf"self\.{part}\b", source))
        owner = getattr(owner, part)
    return True


@each
def test_what_is_documented_exists(member):
    assert {
        f"{file.relative_to(voice.ROOT)}: {name}"
        for file, text, module in documents(member)
        for name in NAME.findall(text)
        if not exists(name.split("."), module)
    } == set()


def test_the_checks_can_fail(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(
        'def f(a, b, c):\n    """What f is."""\n    found = a\n    return found\n\n'
        'def g(x):\n    """G.\n\n    Args:\n        y: Nothing.\n    """\n\ndef h():\n    pass\n'
    )
    words, findings = voice.check(file)
    assert words > 0
    assert [(line, kind) for line, kind, _ in findings] == [
        (1, "args"),
        (1, "opener"),
        (1, "relative"),
        (3, "result"),
        (6, "absent"),
        (13, "undocumented"),
    ]
    module = importlib.import_module("dovetail_data")
    assert exists(["Corpus", "read"], module)
    assert not exists(["Corpus", "documents"], module)
    assert not exists(["dovetail_data", "nothing"], module)
    assert exists(["dovetail_data", "sources", "text"], module)
