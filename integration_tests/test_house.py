# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The rules that hold for every file and every package of the repository."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import workspace

pytestmark = pytest.mark.once

ROOT = workspace.ROOT
MEMBERS = workspace.members()
HEADER = ["# Copyright 2026 The Dovetail Authors", "# SPDX-License-Identifier: Apache-2.0"]
FILE_LINES, FUNCTION_LINES = 400, 60
README_PROGRAM_LINES = 15
FRAGMENT_WORDS = 25
each = pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.folder)


def tracked() -> list[Path]:
    """The files of the repository, also those that the next commit will add."""
    line = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in names.split("\0") if name]
    return [f for f in files if f.is_file()]


FILES = tracked()
PYTHON = [f for f in FILES if f.suffix == ".py"]


def relative(file: Path) -> str:
    return str(file.relative_to(ROOT))


def lines_with(pattern: str, files: list[Path]) -> list[str]:
    """Returns `file:line: text` of every line that matches."""
    return [
        f"{relative(file)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_no_file_names_a_folder_of_a_machine_or_a_registry():
    registries = r"py" r"pi\.org|pythonhosted\.org|registry\.npmjs"
    assert lines_with(r"(?<![\w.~$}])/(?:home|Users|root|work)/|" + registries, FILES) == []
    assert [f for f in FILES if f.suffix == ".lock" or f.name == "package-lock.json"] == []


def test_no_private_jax():
    private = r"jax\._" r"src|from jax import _" "src"
    assert lines_with(private, [f for f in PYTHON if "integration_tests" not in f.parts]) == []


def test_every_source_file_begins_with_its_licence():
    headers = {f: f.read_bytes()[:200].decode("utf-8", "replace").splitlines() for f in FILES}
    sources = {f: h for f, h in headers.items() if f.suffix == ".py" or (h and h[0][:2] == "#!")}
    wrong = [relative(f) for f, h in sources.items() if HEADER not in (h[:2], h[1:3])]
    assert wrong == []


def excess(file: Path) -> list[str]:
    """Returns the syntax of a file that is not Python 3.11, and sizes over the budgets."""
    source, name = file.read_text(encoding="utf-8"), relative(file)
    try:
        tree = ast.parse(source, filename=name, feature_version=(3, 11))
        if sys.version_info < (3, 12):
            compile(source, name, "exec")  # ast accepts newer f-strings
    except SyntaxError as error:
        return [f"{name}: {error}"]
    lines = len(source.splitlines())
    wrong = [f"{name}: {lines} lines"] if lines > FILE_LINES else []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                # A docstring owes the user more the more the function does.
                size -= node.body[0].end_lineno - node.body[0].lineno + 1
            if size > FUNCTION_LINES:
                wrong.append(f"{name}: {node.name}, {size} lines")
    return wrong


@pytest.mark.costly("it parses every file")
def test_files_fit_python_311_and_the_budgets():
    assert [x for file in PYTHON for x in excess(file)] == []


@each
def test_member_has_the_house_of_a_package(member):
    for name in ("CHANGELOG.md", "changes", "tests", "benchmarks", f"src/{member.module}/py.typed"):
        assert (member.path / name).exists(), name
    page = ROOT / "docs" / "packages" / f"{member.folder}.md"
    assert f"packages/{member.folder}/README.md" in page.read_text()
    assert f"]({member.folder}.md)" in (ROOT / "docs/packages/index.md").read_text()
    assert f"](packages/{member.folder})" in (ROOT / "README.md").read_text()
    # The sessions `bare` and `documents` run the program.
    readme = (member.path / "README.md").read_text()
    (program, *_) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in program.splitlines() if line]) <= README_PROGRAM_LINES


@each
def test_fragments_are_bullets_that_towncrier_reads(member):
    files = [f for f in (member.path / "changes").iterdir() if f.name != ".gitkeep"]
    name = r"(\d+|\+[\w-]+)\.(feature|bugfix|doc|removal|misc)\.md"
    assert [f for f in files if not re.fullmatch(name, f.name)] == []
    # scripts/changelog.md.jinja renders each line as a bullet: a wrapped sentence would be two.
    lines = [f"{f.name}: {x}" for f in files for x in f.read_text().splitlines()]
    assert {f.name for f in files} == {x.partition(":")[0] for x in lines}
    assert [x for x in lines if len(x.split()) - 1 > FRAGMENT_WORDS] == []
    assert [x for x in lines if not re.search(r": \S.*[.:]$", x)] == []


@each
def test_only_the_meta_package_pins_and_libraries_know_no_sibling(member):
    if member.folder == workspace.META:
        return
    groups = [workspace.parse(r) for g in member.extras.values() for r in g]
    declared = [*member.dependencies, *groups]
    assert [d for d in declared if not re.fullmatch(r">=[0-9.]+", d.specifier)] == []
    siblings = {m.name for m in MEMBERS.values()} - {member.name}
    assert siblings.isdisjoint(d.name for d in declared)


def test_the_import_contracts_know_every_member():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    modules = {m.module for m in MEMBERS.values()}
    libraries = modules - {MEMBERS[workspace.META].module}
    assert set(linter["root_packages"]) == modules
    independence, forbidden, *layers = linter["contracts"]
    assert set(independence["modules"]) == set(forbidden["source_modules"]) == libraries
    assert {contract["type"] for contract in layers} <= {"layers"}
