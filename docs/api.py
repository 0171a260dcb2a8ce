# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""API pages by topic: the groups of `__all__` in a package's `__init__`, written at each build.

A package's own page lists the topics, with a line for each name.
"""

import ast
import importlib
import inspect
import re
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/packages/api"  # git ignores it
CONSTANT = re.compile(r"_\w+|[A-Z][A-Z0-9_]+")
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
    text = inspect.getdoc(value) if is_described(value) else comment(module, name)[1]
    first = (text or "").partition("\n\n")[0]
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
    if is_described(value):
        return f".. autofunction:: {name}\n"
    written, text = comment(module, name)
    shown = f"   :type: {written}\n" if "\n" not in written else ""
    return f".. py:data:: {name}\n{shown}\n   {text.replace('`', '``')}\n"


def is_described(value: object) -> bool:
    """Tests for a thing with a docstring. That of an alias of types is a class of Python's."""
    return inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)


def comment(module: str, name: str) -> tuple[str, str]:
    """Returns a constant or alias as its module writes it, and the text of the `#:` above it."""
    folder = Path(importlib.import_module(module).__file__ or "").parent
    pattern = re.compile(rf"((?:^#: .*\n)+){name}(?:: [^\n=]+)? = (.*(?:\n[ )\]].*)*)", re.M)
    for file in sorted(folder.rglob("*.py")):
        if match := pattern.search(file.read_text(encoding="utf-8")):
            lines = (line.removeprefix("#: ") for line in match[1].splitlines())
            return match[2], " ".join(lines)
    raise ValueError(f"{module}.{name} must have a comment above it, got none; write #: and a text")


def with_values(app: object, function: object, bound: bool) -> None:
    """Shows a default's value where the source has the name of a constant that is not public.

    Args:
        app: The Sphinx application, which calls this once it has the defaults as they are written.
        function: The function or method; its `__signature__` is replaced.
        bound: Whether it is a method.
    """
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__signature__"):
        function = inspect.unwrap(function)
    if not inspect.isfunction(function) or not hasattr(function, "__signature__"):
        return
    package = sys.modules[function.__module__.partition(".")[0]]
    parameters = dict(function.__signature__.parameters)
    for name, parameter in parameters.items():
        source = str(parameter.default)
        if CONSTANT.fullmatch(source) and source not in getattr(package, "__all__", ()):
            value = eval(source, inspect.unwrap(function).__globals__)
            parameters[name] = parameter.replace(default=value)
    function.__signature__ = function.__signature__.replace(parameters=parameters.values())
