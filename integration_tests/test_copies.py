# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text that several packages have is one text."""

import shutil

import pytest

import copies
from workspace import ROOT

pytestmark = pytest.mark.once


def test_the_copies_are_equal():
    assert copies.differing() == [], "write them anew: python scripts/copies.py"


def test_every_original_has_its_copies_and_no_package_has_another():
    assert {f.name for f in (ROOT / copies.SHARED).iterdir() if f.is_file()} == set(copies.COPIES)
    for name, packages in copies.COPIES.items():
        assert len(packages) > 1, f"{name} is needed by {packages} alone"
        found = {path.parts[-4] for path in ROOT.glob(f"packages/*/src/*/{name}")}
        assert found == set(packages)


@pytest.fixture
def tree(tmp_path):
    for name in copies.COPIES:
        for file in [copies.SHARED / name, *copies.copies(name)]:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


EVERY_COPY = [path for name in copies.COPIES for path in copies.copies(name)]


@pytest.mark.parametrize("copy", EVERY_COPY, ids=str)
@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_copy_that_differs_is_found_and_repaired(tree, copy, change):
    if change == "gone":
        (tree / copy).unlink()
    else:
        (tree / copy).write_bytes((tree / copy).read_bytes() + b"\n")
    assert copies.differing(tree) == [copy]
    assert copies.write(tree) == [copy]
    assert copies.differing(tree) == []
