# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The documentation names what exists; its first page, lines and defaults are for readers."""

import ast
import contextlib
import importlib
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dovetail_stack.cli
import voice
import workspace
from dovetail_train.step import checks as _checks

sys.path.append(str(workspace.ROOT / "docs"))

import api
import drawing
import install

pytestmark = pytest.mark.once

ROOT = workspace.ROOT
MEMBERS = workspace.members()
PATTERNS = ("*.md", "packages/*/README.md", "docs/*.md", "docs/*/*.md")
PAGES = [page for pattern in PATTERNS for page in sorted(ROOT.glob(pattern))]
# `dovetail_train.Trainer(accumulate=, mesh=mesh)`, `Store.save(step)` or `optax.adamw`
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)(?:\(([^`]*)\))?`")
# `dovetail quantize --bits`, or options alone, which are those of the page's command
COMMAND = re.compile(r"`dovetail ([a-z]+(?: [a-z]+)?)((?: --[a-z-]+)*)`")
OPTIONS = re.compile(r"`(--[a-z-]+(?: --[a-z-]+)*)`")
# Of the options that stand alone on a page, if not pretrain.
COMMANDS = dict.fromkeys(("openai", "servers", "vllm"), "serve")
COLUMNS = 88  # of code that the widest page shows without scrolling
_HIDDEN = 7
PEERS = {"optax": "optax", "jax": "jax", "nnx": "flax.nnx"}


def docstrings() -> Iterator[tuple[Path, str, ModuleType]]:
    """Yields the docstrings of all packages, with their files and modules."""
    for member in MEMBERS.values():
        for file in sorted(member.path.glob("src/**/*.py")):
            parts = file.relative_to(member.path / "src").with_suffix("").parts
            if parts[-1] == "__main__":
                continue
            module = importlib.import_module(".".join(p for p in parts if p != "__init__"))
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | voice.Function):
                    yield file, ast.get_docstring(node) or "", module


def wrong_name(name: str, arguments: str, *modules: ModuleType) -> str | None:
    """Returns what is wrong with a dotted name and its keywords, or None.

    The name is that of a package, of a peer, or of a class in `modules`; others are not judged.
    """
    first, *parts = name.split(".")
    classes = [vars(module).get(first) for module in modules]
    owners = [o for o in classes if inspect.isclass(o) and o.__module__.startswith("dovetail_")]
    if first.startswith("dovetail_") or first in PEERS:
        owners = [importlib.import_module(PEERS.get(first, first))]
    values = []
    for owner in owners:
        with contextlib.suppress(AttributeError):
            values.append(member_of(owner, parts))
    if owners and not values:
        return f"{name} does not exist"
    keywords = re.findall(r"(?:^|, )(\w+)=", arguments)
    if values and keywords:
        # A module of Flax hides its constructor behind a metaclass.
        function = values[0].__init__ if inspect.isclass(values[0]) else values[0]
        try:
            inspect.signature(function).bind_partial(**dict.fromkeys(keywords))
        except TypeError as error:
            return f"{name} {error}"
    return None


def member_of(owner: Any, parts: list[str]) -> Any:
    """Returns the module, class, function or field of a dotted name; else AttributeError."""
    for part in parts:
        if inspect.ismodule(owner) and not hasattr(owner, part):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{owner.__name__}.{part}")
        if inspect.isclass(owner) and not hasattr(owner, part):
            fields = [*getattr(owner, "__annotations__", ()), *getattr(owner, "_fields", ())]
            if part in fields or re.search(rf"self\.{part}\b", inspect.getsource(owner)):
                return part
        owner = getattr(owner, part)
    return owner


def wrong_command(words: str, options: str) -> str | None:
    """Returns the first option that the command lacks, or None."""
    argv = words.split()
    parser = dovetail_stack.cli.parser(argv)
    for word in argv:
        (subparsers,) = (a for a in parser._actions if hasattr(a, "_name_parser_map"))
        if word not in subparsers.choices:
            return f"there is no command dovetail {words}"
        parser = subparsers.choices[word]
    unknown = [x for x in options.split() if x not in parser._option_string_actions]
    return f"dovetail {words} has no {unknown[0]}" if unknown else None


def test_every_name_in_the_documentation_exists():
    packages = [importlib.import_module(m.module) for m in MEMBERS.values()]
    texts = [*docstrings(), *((page, page.read_text(), packages[0]) for page in PAGES)]
    assert {
        f"{file.relative_to(ROOT)}: {wrong}"
        for file, text, module in texts
        for name, arguments in NAME.findall(text)
        if (wrong := wrong_name(name, arguments, module, *packages))
    } == set()


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/howto/*.md")), ids=lambda f: f.stem)
def test_every_option_in_a_table_exists(page):
    rows = "\n".join(re.findall(r"^\|.*", page.read_text(), re.MULTILINE))
    command = COMMANDS.get(page.stem, "train pretrain")
    commands = COMMAND.findall(rows) + [(command, options) for options in OPTIONS.findall(rows)]
    assert [w for words, options in commands if (w := wrong_command(words, options))] == []


def test_the_page_of_other_modules_has_the_lines_of_the_errors():
    page = (ROOT / "docs/howto/other_modules.md").read_text()
    assert _checks._WRAPPER in page
    assert "nnx.bridge.ToNNX(model, rngs=nnx.Rngs(0)).lazy_init(x)" in page


def test_a_wrong_name_is_noticed():
    data = importlib.import_module("dovetail_data")
    assert wrong_name("dovetail_train.Trainer", "accumulate=, guard=") is None
    assert "argument 'every'" in wrong_name("dovetail_train.Trainer", "every=")
    assert "does not exist" in wrong_name("dovetail_models.lora.undo", "")
    assert "does not exist" in wrong_name("Corpus.documents", "", data)
    assert wrong_name("Corpus.read", "", data) is None
    assert wrong_command("train pretrain", " --fsdp --estimate") is None
    assert "no --zeal" in wrong_command("train pretrain", " --fsdp --zeal")
    assert "no command" in wrong_command("train sideways", "")


def test_commands_of_installation_name_extras_of_jax():
    requirements = " ".join(requirement or "" for *_, requirement, _ in install.PLATFORMS)
    text = requirements + (ROOT / "docs/install.md").read_text()
    named = set(re.findall(r"jax\[([\w-]+)\]", text))
    assert {"cuda12", "cuda13", "tpu", "rocm7-local"} <= named
    assert named <= set(importlib.metadata.metadata("jax").get_all("Provides-Extra"))


def blocks(page):
    """The kinds and texts of the fenced blocks of a page."""
    return re.findall(r"^```(\S*)[^\n]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_code_fits_a_page():
    code = [(page, text) for page in PAGES for kind, text in blocks(page) if kind != "text"]
    assert [(page, x) for page, text in code for x in text.splitlines() if len(x) > COLUMNS] == []


def test_the_first_page_and_the_readme_begin_with_commands_of_a_clone_and_run_one_program():
    first, readme = (blocks(ROOT / name) for name in ("docs/index.md", "README.md"))
    assert first[0] == ("sh", "scripts/quickstart\n")
    assert "\n    scripts/quickstart\n" in (ROOT / "README.md").read_text().partition("##")[0]
    assert dict(first)["{code-cell}"] == dict(readme)["python"]


def test_the_sidebar_shows_groups():
    entries = [
        line
        for kind, text in blocks(ROOT / "docs/index.md")
        if kind == "{toctree}"
        for line in text.splitlines()
        if line and not line.startswith(":")
    ]
    assert 1 < len(entries) <= 15
    assert all((ROOT / f"docs/{entry}.md").exists() for entry in entries)


def test_the_drawing_is_that_of_the_packages():
    assert drawing.FILE.read_text() == drawing.drawing(), "run python docs/drawing.py"
    drawn = [name for row in drawing.ROWS if isinstance(row, dict) for name in row]
    assert sorted(drawn) == sorted(member.folder for member in MEMBERS.values())


def test_a_command_of_an_index_says_whether_the_packages_are_published():
    command = re.compile(r"`pip install [^`]*dovetail-[^`]*`(?!<!-- figure: once-published -->)")
    assert [(page, x) for page in PAGES for x in command.findall(page.read_text())] == []


def test_a_private_default_is_shown_as_its_value():
    class Written(str):
        __repr__ = str.__str__

    def function(first=_HIDDEN, *, second=_HIDDEN, third=COLUMNS, fourth=None):
        raise NotImplementedError

    parameters = inspect.signature(function).parameters.values()
    names = map(Written, ("_HIDDEN", "_HIDDEN * 2", "COLUMNS", "None"))
    named = [p.replace(default=name) for p, name in zip(parameters, names, strict=True)]
    function.__signature__ = inspect.Signature(named)
    api.with_values(None, function, False)
    assert str(function.__signature__) == "(first=7, *, second=_HIDDEN * 2, third=88, fourth=None)"
