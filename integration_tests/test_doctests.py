# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run as printed, and none is lost: each package states their number."""

import doctest
import importlib
import pkgutil
import tomllib

import pytest

import workspace

MEMBERS = list(workspace.members().values())
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(package: str) -> list[doctest.DocTest]:
    """Returns the docstrings of the package's modules that hold `>>>`."""
    top = importlib.import_module(package)
    modules = pkgutil.walk_packages(top.__path__, f"{package}.")
    names = [package, *(m.name for m in modules if not m.name.endswith("__main__"))]
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [t for name in names for t in finder.find(importlib.import_module(name))]
    return [t for t in tests if t.examples]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.folder)
def test_examples_in_docstrings_run(member, tmp_path, monkeypatch):
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    tests = examples(member.module)
    printed = []
    for number, test in enumerate(tests):
        folder = tmp_path / str(number)  # some write files
        folder.mkdir()
        monkeypatch.chdir(folder)
        runner.run(test, out=printed.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(printed)
    settings = tomllib.loads((member.path / "pyproject.toml").read_text())["tool"]
    assert len(tests) == settings["dovetail"]["doctests"], [t.name for t in tests]
