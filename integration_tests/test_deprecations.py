# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Renamed public names: a warning, then an error, with the name to write."""

import importlib
import importlib.util
import sys
import types
import warnings

import pytest

import copies
import workspace

pytestmark = pytest.mark.once

MODULES = [f"dovetail_{package}" for package in copies.COPIES["_deprecations.py"]]
NAMES = [(m, old) for m in MODULES for old in importlib.import_module(m)._RENAMED]
FILE = workspace.ROOT / copies.SHARED / "_deprecations.py"


@pytest.fixture(scope="module")
def deprecations():
    spec = importlib.util.spec_from_file_location("_deprecations", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def module(deprecations, monkeypatch):
    """A module whose name `Old` is `New`, at a version to choose."""

    def make(version):
        made = types.ModuleType("made")
        made.New = object()
        table = {"Old": deprecations.Renamed("New", ends="0.3")}
        made.__getattr__ = deprecations.renamed_names("made", table, version=version)
        monkeypatch.setitem(sys.modules, "made", made)
        return made

    return make


@pytest.mark.parametrize("version", ["0.1.0", "0.2.9"])
def test_an_old_name_warns_at_the_callers_line(module, version):
    made = module(version)
    with pytest.warns(DeprecationWarning, match="write made.New instead") as caught:
        assert made.Old is made.New
    assert caught[0].filename == __file__
    assert "made.Old was renamed and ends with version 0.3" in str(caught[0].message)


@pytest.mark.parametrize("version", ["0.3", "0.3.0", "0.10.1", "1.0.0"])
def test_then_it_is_an_error(module, version):
    with pytest.raises(AttributeError, match=r"made\.Old was renamed") as error:
        _ = module(version).Old
    assert f"got version {version}" in str(error.value)
    assert "write made.New instead" in str(error.value)


def test_another_name_is_the_usual_error(module):
    with pytest.raises(AttributeError, match=r"^module 'made' has no attribute 'Odd'$"):
        _ = module("0.1.0").Odd
    assert not hasattr(module("0.1.0"), "Odd")


@pytest.mark.parametrize(("name", "old"), NAMES)
def test_a_renamed_name_of_a_package(name, old):
    package = importlib.import_module(name)
    new = package._RENAMED[old].name
    assert new in package.__all__
    assert old not in package.__all__
    version = workspace.members()[name.removeprefix("dovetail_")].version.split(".")
    ends = package._RENAMED[old].ends.split(".")
    ended = [int(v) for v in version[:2]] >= [int(v) for v in ends]
    advice = f"write {name}.{new} instead"
    with pytest.raises(AttributeError, match=advice) if ended else pytest.deprecated_call():
        assert getattr(package, old) is getattr(package, new)


@pytest.mark.parametrize(("name", "old"), NAMES)
def test_an_import_from_warns_too(name, old):
    with pytest.warns(DeprecationWarning, match="was renamed"):
        exec(f"from {name} import {old}", {})


@pytest.mark.parametrize("name", MODULES)
def test_public_names_do_not_warn(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(f"from {name} import *", {})
