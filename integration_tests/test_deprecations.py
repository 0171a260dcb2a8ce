# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Renamed public names: a warning, then an error, with the name to write."""

import importlib
import sys
import types

import pytest

import workspace

pytestmark = pytest.mark.once

MODULES = [f.parent.name for f in workspace.ROOT.glob("packages/*/src/*/_deprecations.py")]
NAMES = [(m, old) for m in MODULES for old in importlib.import_module(m)._RENAMED]


@pytest.fixture
def module(monkeypatch):
    """A module whose name `Old` is `New` until 0.3, at a version to choose."""
    deprecations = importlib.import_module(f"{MODULES[0]}._deprecations")

    def make(version):
        made = types.ModuleType("made")
        made.New = object()
        table = {"Old": deprecations.Renamed("New", ends="0.3")}
        made.__getattr__ = deprecations.renamed_names("made", table, version=version)
        monkeypatch.setitem(sys.modules, "made", made)
        return made

    return make


def test_an_old_name_warns_at_the_callers_line(module):
    made = module("0.2.9")
    message = r"made\.Old was renamed and ends with version 0\.3; write made\.New instead"
    with pytest.warns(DeprecationWarning, match=message) as caught:
        assert made.Old is made.New
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match=r"^module 'made' has no attribute 'Odd'$"):
        _ = made.Odd


@pytest.mark.parametrize("version", ["0.3", "0.10.1", "1.0.0"])
def test_then_it_is_an_error(module, version):
    message = rf"made\.Old was renamed; got version {version}.*; write made\.New instead"
    with pytest.raises(AttributeError, match=message):
        _ = module(version).Old


@pytest.mark.parametrize(("name", "old"), NAMES)
def test_a_renamed_name_of_a_package(name, old):
    package = importlib.import_module(name)
    new = package._RENAMED[old]
    assert old not in package.__all__
    version = workspace.members()[name.removeprefix("dovetail_")].version.split(".")
    assert [int(v) for v in version[:2]] < [int(v) for v in new.ends.split(".")], "delete it"
    with pytest.warns(DeprecationWarning, match=f"write {name}.{new.name} instead"):
        assert getattr(package, old) is getattr(package, new.name)
