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


def text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # a binary file


def lines_with(pattern: str, files: list[Path]) -> list[str]:
    """`file:line: text` of every line that matches."""
    expression = re.compile(pattern)
    return [
        f"{relative(file)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(text(file).splitlines(), 1)
        if expression.search(line)
    ]


def test_no_file_names_a_folder_of_somebodys_machine():
    assert lines_with(r"(?<![\w.~$}])/(?:home|Users|root|work)/", FILES) == []


def test_no_file_names_a_registry_and_no_lock_file_is_tracked():
    assert lines_with(r"(?:py" r"pi\.org|pythonhosted\.org|registry\.npmjs)", FILES) == []
    assert [f for f in FILES if f.suffix == ".lock" or f.name == "package-lock.json"] == []


def test_constraints_hold_versions_and_nothing_else():
    for python in workspace.PYTHONS:
        file = workspace.constraints_file(python)
        odd = [
            x
            for x in file.read_text().splitlines()
            if not re.fullmatch(r"[a-z0-9-]+==[0-9][^\s;/@]*( ; .+)?", x)
        ]
        assert odd == [], relative(file)
        names = set(workspace.constraints(python))
        assert names.isdisjoint({m.name for m in MEMBERS.values()} | {"torch", "triton"})
        assert not [n for n in names if n.startswith("nvidia-")]


def test_no_private_jax():
    private = r"jax\._" r"src|from jax import _" "src"
    assert lines_with(private, [f for f in PYTHON if "integration_tests" not in f.parts]) == []


def test_every_source_file_begins_with_its_licence():
    scripts = [f for f in FILES if not f.suffix and text(f).startswith("#!")]
    wrong = []
    for file in PYTHON + scripts:
        lines = text(file).splitlines()[:3]
        if lines[:2] != HEADER and not (lines[0].startswith("#!") and lines[1:] == HEADER):
            wrong.append(relative(file))
    assert wrong == []


def docstring_lines(function: ast.AST) -> int:
    if ast.get_docstring(function, clean=False) is None:
        return 0
    return function.body[0].end_lineno - function.body[0].lineno + 1


def excess(file: Path) -> list[str]:
    """What of a file is not Python 3.11, or longer than the budgets allow."""
    source, name = text(file), relative(file)
    try:
        tree = ast.parse(source, filename=name, feature_version=(3, 11))
        if sys.version_info < (3, 12):
            compile(source, name, "exec")  # what ast lets pass, such as newer f-strings
    except SyntaxError as error:
        return [f"{name}: {error}"]
    lines = len(source.splitlines())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    # Without its docstring, which owes the user more the more the function does.
    long = {f.name: f.end_lineno - f.lineno + 1 - docstring_lines(f) for f in functions}
    wrong = [f"{name}: {lines} lines"] if lines > FILE_LINES else []
    return wrong + [f"{name}: {f}, {n} lines" for f, n in long.items() if n > FUNCTION_LINES]


@pytest.mark.costly("it parses every file")
def test_files_fit_python_311_and_the_budgets():
    assert [wrong for file in PYTHON for wrong in excess(file)] == []


def test_the_meta_packages_pins_are_the_members_versions_and_the_tested_set():
    assert workspace.false_pins() == []


@pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.folder)
def test_member_has_the_house_of_a_package(member):
    for name in ("README.md", "CHANGELOG.md", "changes", "tests", "benchmarks"):
        assert (member.path / name).exists(), name
    page = ROOT / "docs" / "packages" / f"{member.folder}.md"
    assert f"packages/{member.folder}/README.md" in page.read_text()
    assert f"packages/{member.folder})" in (ROOT / "README.md").read_text()
    source = member.path / "src"
    folders = [d.name for d in source.iterdir() if d.name != "__pycache__"]
    assert [d for d in folders if not d.endswith(".egg-info")] == [member.module]
    assert (source / member.module / "py.typed").exists()
    document = tomllib.loads((member.path / "pyproject.toml").read_text())
    assert document["tool"]["hatch"]["build"]["targets"]["wheel"] == {
        "packages": [f"src/{member.module}"]
    }


@pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.folder)
def test_the_first_program_of_a_readme_is_short(member):
    # The sessions `bare` and `documents` run it.
    (program, *_) = re.findall(r"```python\n(.*?)```", text(member.path / "README.md"), re.DOTALL)
    assert len([line for line in program.splitlines() if line]) <= README_PROGRAM_LINES


@pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.folder)
def test_changes_are_fragments_that_towncrier_reads(member):
    kinds = "feature|bugfix|doc|removal|misc"
    names = [f.name for f in (member.path / "changes").iterdir() if f.name != ".gitkeep"]
    assert [n for n in names if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({kinds})\.md", n)] == []


def test_each_line_of_a_fragment_is_one_bullet_of_at_most_25_words():
    # scripts/changelog.md.jinja renders each line as a bullet: a wrapped sentence would be two.
    long, wrapped = [], []
    for file in ROOT.glob("packages/*/changes/*.md"):
        lines = text(file).splitlines()
        assert lines, f"{relative(file)} is empty"
        long += [f"{relative(file)}: {x}" for x in lines if len(x.split()) > FRAGMENT_WORDS]
        wrapped += [f"{relative(file)}: {x}" for x in lines if not re.match(r"\S.*[.:]$", x)]
    assert long == []
    assert wrapped == []


@pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.folder)
def test_only_the_meta_package_pins_and_libraries_know_no_sibling(member):
    if member.folder == workspace.META:
        return
    groups = [workspace.parse(r) for g in member.extras.values() for r in g]
    declared = [*member.dependencies, *groups]
    capped = [d for d in declared if not re.fullmatch(r">=[0-9.]+", d.specifier)]
    assert capped == []
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
