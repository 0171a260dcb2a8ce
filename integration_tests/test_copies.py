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


def test_a_copy_that_differs_or_is_gone_is_found_and_repaired(tmp_path, monkeypatch):
    for name in copies.COPIES:
        for file in [copies.SHARED / name, *copies.copies(name)]:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
    changed, gone, *_ = copies.copies("_durable.py")
    (tmp_path / changed).write_text("changed")
    (tmp_path / gone).unlink()
    assert copies.differing(tmp_path) == [changed, gone]
    monkeypatch.setattr(copies, "ROOT", tmp_path)
    copies.main()
    assert copies.differing(tmp_path) == []
