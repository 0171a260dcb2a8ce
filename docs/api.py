# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""API pages by topic: the groups of `__all__` in a package's `__init__`, written at each build.

A package's own page lists the topics, with a line for each name.
"""

import ast
import importlib
import inspect
import re
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/packages/api"  # git ignores it
TOPIC = re.compile(r"^\s*# (.+)$")


def write() -> None:
    """Writes a page for each topic of each package with topics, and an index of them."""
    for file in sorted(ROOT.glob("packages/*/src/*/__init__.py")):
        topics = read_topics(file)
        if not topics:
            continue
        module, package = file.parent.name, file.parent.parent.parent.name
        folder = PAGES / package
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.md"):
            old.unlink()
        pages, sections = [], []
        for number, (topic, members) in enumerate(topics.items()):
            pages.append(f"{package}/{number:02d}-{re.sub('[^a-z0-9]+', '-', topic.lower())}")
            page = f"# {topic}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n\n"
            page += "\n".join(directive(module, name) for name in members) + "```\n"
            (PAGES / f"{pages[-1]}.md").write_text(page, encoding="utf-8")
            rows = "".join(row(module, name) for name in members)
            sections.append(
                f"## [{topic}]({pages[-1]}.md)\n\n| name | summary |\n|---|---|\n{rows}\n"
            )
        toctree = "```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"
        index = f"# {module}\n\n{toctree}\n" + "".join(sections)
        (PAGES / f"{package}.md").write_text(index, encoding="utf-8")


def row(module: str, name: str) -> str:
    """Returns the row of a public name: a link, and the first line of its docstring."""
    value = getattr(importlib.import_module(module), name)
    # The docstring of an alias of types is that of a class of Python.
    described = inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)
    first = (inspect.getdoc(value) or "").partition("\n\n")[0] if described else ""
    role, target = (
        ("mod", value.__name__) if inspect.ismodule(value) else ("obj", f"{module}.{name}")
    )
    sentence = " ".join(first.split()).replace("|", "\\|")
    return f"| {{py:{role}}}`{name} <{target}>` | {sentence} |\n"


def read_topics(file: Path) -> dict[str, list[str]]:
    """Returns the names of `__all__` by the comment above them; none without comments."""
    source = file.read_text(encoding="utf-8")
    lists = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    if not lists:
        return {}
    topics: dict[str, list[str]] = {}
    for line in source.splitlines()[lists[0].lineno : lists[0].end_lineno]:
        if match := TOPIC.match(line):
            topics[match[1]] = []
        elif topics and (name := line.strip().strip('",')) and name != "]":
            topics[next(reversed(topics))].append(name)
    return topics


def directive(module: str, name: str) -> str:
    """Returns the autodoc directive of a public name."""
    value = getattr(importlib.import_module(module), name)
    if isinstance(value, types.ModuleType):
        return f".. automodule:: {value.__name__}\n\n.. currentmodule:: {module}\n"
    if inspect.isclass(value):
        return f".. autoclass:: {name}\n   :members:\n"
    return f".. {'autofunction' if callable(value) else 'autodata'}:: {name}\n"
