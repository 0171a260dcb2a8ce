# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The reach of a change: the packages that it can break, and a key for each check.

The key of a check is a hash over its inputs: the sources that it reaches by imports, its tests, the
versions of its environment, the interpreter, its command, and what `[tool.dovetail.edges]` in
pyproject.toml declares. Equal keys mean equal results, so .ci/run leaves out a check whose key has
passed (scripts/passed.py).

`python scripts/changed.py BASE` prints the packages as a JSON list for the workflow's matrix: a
change under packages/NAME concerns NAME and the members that depend on it, a change anywhere else
concerns all. With an unknown BASE (a first push) all are listed.
"""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import functools
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import workspace
from reach import EVERYTHING, Tree

DOCTESTS = "integration_tests/test_doctests.py"  # a check for each package
# Parts of a package that no suite reads.
_UNREAD = re.compile(r"packages/\w+/(?:CHANGELOG\.md|LICENSE|changes/|benchmarks/results/)")
LEGS = {
    "native-3.12": (
        "packages/kernels/native/*",
        "packages/kernels/src/*",
        "packages/kernels/tests/conftest.py",
        "packages/kernels/tests/quantized/*",
    ),
    "absent": (
        "packages/cluster/src/*",
        "packages/cluster/tests/absent/*",
        "packages/kernels/src/*",
        "packages/models/src/*",
        "packages/train/src/*",
        "integration_tests/programs/*",
        "integration_tests/test_cluster_with_train.py",
    ),
    "gpu-3.12": (
        "packages/cluster/src/*",
        "packages/infer/src/*",
        "packages/kernels/src/*",
        "packages/models/src/*",
        "packages/quant/src/*",
        "packages/train/src/*",
        "packages/train/benchmarks/device_training.py",
        "integration_tests/programs/gpu_programs.py",
        "integration_tests/gpu/*",
    ),
    "triton": ("packages/serve/src/*", "packages/serve/tests/*"),
    **dict.fromkeys(
        [f"build-{python}" for python in workspace.PYTHONS],
        ("packages/*/src/*", "packages/*/pyproject.toml", "packages/*/README.md", "scripts/*.py"),
    ),
    "docs": (
        "docs/*",
        "examples/*",
        "packages/*/*.md",
        "packages/*/benchmarks/*",
        "packages/*/src/*",
        "scripts/*",
        "[CR]*.md",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One check, and what its result depends on."""

    name: str  # such as "thorough-3.11(data)", "integration-3.12(test_walk.py)" or "docs"
    paths: frozenset[str]  # files, and folders with a final "/"
    folders: frozenset[str]  # packages whose dependencies are in its environment
    python: str  # version of its interpreter, such as "3.12"
    session: str = ""  # of noxfile.py; "" for .venv

    @property
    def group(self) -> str:
        """The name without the part in parentheses."""
        return self.name.partition("(")[0]

    @property
    def unit(self) -> str:
        """The part in parentheses, "" without one."""
        return self.name.partition("(")[2].removesuffix(")")


def checks(tree: Tree) -> list[Check]:
    """Every check that .ci/run leaves out when its key has passed."""
    found = [*_of_packages(tree), *_of_files(tree), *_legs(tree)]
    edges = tree.settings["edges"]
    widened = []
    for check in found:
        matching = [
            p for p, names in edges.items() if any(fnmatch.fnmatch(check.name, n) for n in names)
        ]
        paths = frozenset(tree.below({*check.paths, *matching}))
        widened.append(dataclasses.replace(check, paths=paths))
    return widened


def _of_packages(tree: Tree) -> Iterator[Check]:
    first, second = workspace.PYTHONS
    of_wheels = {"documents.py", "documents.toml", "wheels.py"}
    for folder, member in tree.members.items():
        home, inputs = f"packages/{folder}/", suite(tree, folder)
        sources = {f"{home}src/", f"{home}pyproject.toml"}
        sources |= _sources(tree) if folder == workspace.META else set()
        wheel = {*sources, f"{home}README.md", *(f"scripts/{name}" for name in of_wheels)}
        kinds = {
            f"thorough-{first}": (first, "", inputs),
            f"tests-{second}": (second, "tests", inputs),
        }
        if "parity" in member.groups:
            kinds["parity"] = (first, "parity", inputs)
        for python in workspace.PYTHONS:
            session = "" if python == first else "integration"
            kinds[f"doctests-{python}"] = (python, session, {*sources, DOCTESTS})
            kinds[f"bare-{python}"] = (python, "bare", wheel)
        for group, (python, session, paths) in kinds.items():
            known = {"folders": frozenset([folder]), "python": python, "session": session}
            yield Check(name=f"{group}({folder})", paths=frozenset(paths), **known)


def suite(tree: Tree, folder: str) -> set[str]:
    """The inputs of a package's suite."""
    own = {f for f in tree.below([f"packages/{folder}/"]) if not _UNREAD.match(f)}
    tests = {f for f in own if f.startswith(f"packages/{folder}/tests/")}
    scripts = {f for f in tree.reached(tests) if f.startswith("scripts/")}
    return own | scripts | (_sources(tree) if folder == workspace.META else set())


def _sources(tree: Tree) -> set[str]:
    return {f"packages/{f}/{part}" for f in tree.members for part in ("src/", "pyproject.toml")}


def _of_files(tree: Tree) -> Iterator[Check]:
    """Integration tests, examples with notebooks, and the commands of READMEs, file by file."""
    first, second = workspace.PYTHONS
    tests = [f for f in tree.matching("integration_tests/test_*.py") if f != DOCTESTS]
    programs = tree.matching("integration_tests/programs/*.py")
    for file in tests:
        words = set(re.findall(r"\w+", tree.text(file)))
        started = [program for program in programs if Path(program).stem in words]
        paths = tree.reached([file, *started]) | {"integration_tests/conftest.py"}
        name = Path(file).name
        yield _by_reach(tree, f"integration-{first}({name})", paths, first)
        if not workspace.wholly_thorough(tree.text(file)):  # there only the fast tier runs
            yield _by_reach(tree, f"integration-{second}({name})", paths, second, "integration")
    harness = [*tree.matching("examples/test_*.py"), "examples/conftest.py"]
    tasks = tree.matching("examples/tasks/test_*.py")
    shown = {*tree.matching("examples/*.py"), *tree.matching("examples/*.sh")}
    for file in sorted(shown - {*harness, *tasks}):
        task = file.startswith("examples/tasks/")
        beside = "docs/tasks.md" if task else f"{file.removesuffix('.py')}.ipynb"
        paths = tree.reached([file, *harness, *(tasks if task else [])]) | {beside}
        yield _by_reach(tree, f"examples({Path(file).stem})", paths, first, "examples")
    for file in [*tree.matching("README.md"), *tree.matching("*/README.md"), "CONTRIBUTING.md"]:
        paths = tree.reached([file, "scripts/documents.py"]) | {"scripts/documents.toml"}
        yield _by_reach(tree, f"documents({file})", paths, first, "documents")


def _by_reach(tree: Tree, name: str, paths: set[str], python: str, session: str = "") -> Check:
    """A check whose environment holds all members; the versions are those of what it reaches."""
    folders = {p.split("/")[1] for p in paths if p.startswith("packages/")}
    if EVERYTHING in paths:
        folders = set(tree.members)
    known = {"folders": frozenset(folders), "python": python, "session": session}
    return Check(name=name, paths=frozenset(paths), **known)


def _legs(tree: Tree) -> Iterator[Check]:
    """The other sessions of noxfile.py, with the inputs that `LEGS` names."""
    for name, inputs in LEGS.items():
        session, _, python = name.partition("-")
        folders = frozenset(re.findall(r"packages/(\w+)/", " ".join(inputs)) or tree.members)
        yield Check(
            name=name,
            paths=frozenset(f for pattern in inputs for f in tree.matching(pattern)),
            folders=folders,
            python=python or workspace.PYTHONS[0],
            session=session,
        )


def keys(tree: Tree) -> dict[str, str]:
    """The key of each check by its name: 32 hexadecimal digits."""
    noxfile = _definitions(tree.text("noxfile.py"))
    result = {}
    for check in checks(tree):
        inputs = {
            "check": check.name,
            "python": interpreter(check.python),
            "command": _command(check.session, noxfile),
            "versions": versions(tree, check.folders, check.python),
            "files": {path: tree.digest(path) for path in sorted(check.paths)},
        }
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        result[check.name] = digest[:32]
    return result


def _definitions(source: str) -> dict[str, str]:
    """The text of each function and constant of a module, by name."""
    found = {}
    for node in ast.parse(source).body:
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        names = [getattr(node, "name", None), *(getattr(t, "id", None) for t in targets)]
        for name in filter(None, names):
            # From the decorators on, and with what `X |= ...` adds.
            found[name] = found.get(name, "") + ast.unparse(node)
    return found


def _command(session: str, definitions: dict[str, str]) -> dict[str, str]:
    """The function of a session, and the functions and constants of the noxfile that it needs."""
    needed, waiting = {}, {session} & definitions.keys()
    while waiting:
        name = waiting.pop()
        needed[name] = definitions[name]
        words = set(re.findall(r"\w+", definitions[name]))
        waiting |= (words & definitions.keys()) - needed.keys()
    return needed


@functools.cache
def interpreter(python: str) -> str:
    """The full version of a Python, "3.12.9"; "" if it is not there."""
    program = sys.executable if sys.version_info[:2] == tuple(map(int, python.split("."))) else ""
    line = [program or f"python{python}", "-c", "import platform as p; print(p.python_version())"]
    try:
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions(tree: Tree, folders: Iterable[str], python: str) -> dict[str, str]:
    """The lines of constraints/ that the environment of packages depends on.

    Requirements are read from the installed distributions. A constraint of a distribution that is
    not installed here belongs to every environment, since nothing tells who needs it.
    """
    constrained = tree.constraints(python)
    members = [tree.members[folder] for folder in folders]
    texts = [r for m in members for e in m.extras.values() for r in e]
    texts += [r for m in members for r in m.groups.get("test", ())]
    waiting = {workspace.parse(r).name for r in texts} | {"pytest"}
    waiting |= {d.name for m in members for d in m.dependencies}
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting |= set(_requirements(name, python) or ()) - needed
    if any(_requirements(name, python) is None for name in needed & constrained.keys()):
        needed |= {name for name in constrained if _requirements(name, python) is None}
    elsewhere = tree.constraints(workspace.PYTHONS[0])
    needed |= constrained.keys() - elsewhere.keys()  # a requirement of this Python alone
    return {name: version for name, version in sorted(constrained.items()) if name in needed}


@functools.cache
def _requirements(name: str, python: str) -> frozenset[str] | None:
    """The distributions that an installed one requires on a Python; None if it is not installed."""
    from packaging.requirements import Requirement  # a bare Python has none, nor any check to run
    from packaging.utils import canonicalize_name

    try:
        needs = [Requirement(line) for line in importlib.metadata.requires(name) or []]
    except importlib.metadata.PackageNotFoundError:
        return None
    here = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
    chosen = [n for n in needs if n.marker is None or n.marker.evaluate(here)]
    return frozenset(canonicalize_name(n.name) for n in chosen)


def concerned(paths: Iterable[str]) -> list[str]:
    """The folders of the members that changes to `paths` can break, in alphabetical order."""
    everyone = workspace.members()
    touched = set()
    for path in paths:
        parts = path.split("/")
        if parts[0] != "packages" or len(parts) < 3:
            return sorted(everyone)
        touched.add(parts[1])
    needs = {f: workspace.needs(member, everyone.values()) for f, member in everyone.items()}
    return [f for f, needed in needs.items() if touched & {n.folder for n in needed}]


def changes(base: str) -> list[str]:
    """The files that differ between where `base` and HEAD parted and HEAD; [""] if unknown."""
    line = ["git", "-C", str(workspace.ROOT), "diff", "--name-only", f"{base}...HEAD"]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else [""]


if __name__ == "__main__":
    print(json.dumps(concerned(changes(sys.argv[1]))))
