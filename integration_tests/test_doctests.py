# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run as printed, and none is lost: each package states their number."""

import doctest
import importlib
import pkgutil
import tomllib

import pytest

import workspace

MEMBERS = workspace.members()
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(package: str) -> list[doctest.DocTest]:
    """Returns the docstrings of the package's modules that hold `>>>`."""
    modules = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    names = [package, *(m.name for m in modules if not m.name.endswith("__main__"))]
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [t for name in names for t in finder.find(importlib.import_module(name))]
    return [t for t in tests if t.examples]


# Not a parameter: the tiers take one case of it, and .ci/run takes all packages that have changed.
@pytest.mark.thorough
def test_examples_in_docstrings_run(request, tmp_path, monkeypatch):
    for folder in request.config.getoption("doctests") or list(MEMBERS):
        member, printed = MEMBERS[folder], []
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        tests = examples(member.module)
        for number, test in enumerate(tests):
            own = tmp_path / folder / str(number)  # some write files
            own.mkdir(parents=True)
            monkeypatch.chdir(own)
            runner.run(test, out=printed.append)
        assert printed == []
        tools = tomllib.loads((member.path / "pyproject.toml").read_text())["tool"]
        assert len(tests) == tools["dovetail"]["doctests"], [test.name for test in tests]
