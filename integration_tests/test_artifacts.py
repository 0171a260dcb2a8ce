# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The check of wheels and sdists before an upload."""

import io
import tarfile
import zipfile

import pytest

import artifacts
import workspace

pytestmark = pytest.mark.once

METADATA = "Metadata-Version: 2.4\nName: thing\nLicense-Expression: Apache-2.0\n\n# A thing\n"
LICENSE = (workspace.ROOT / "LICENSE").read_text()


def wheel(folder, *, metadata=METADATA, licence=LICENSE, typed="thing/py.typed"):
    file = folder / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("thing-1.0.dist-info/METADATA", metadata)
        archive.writestr("thing-1.0.dist-info/licenses/LICENSE", licence)
        archive.writestr(typed, "")
    return file


def test_a_whole_wheel_and_a_whole_sdist_have_no_problem(tmp_path):
    assert artifacts.problems(wheel(tmp_path)) == []
    file = tmp_path / "thing-1.0.tar.gz"
    files = {"PKG-INFO": METADATA, "LICENSE": LICENSE, "src/thing/py.typed": ""}
    with tarfile.open(file, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"thing-1.0/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    assert artifacts.problems(file) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"licence": "other"}, "LICENSE must be in it"),
        ({"typed": "thing/it.py"}, "py.typed must be in it"),
        ({"metadata": METADATA.replace("Apache", "B")}, "must be Apache-2.0"),
    ],
    ids=["licence", "typed", "expression"],
)
def test_each_lack_is_named(tmp_path, change, problem):
    (lack,) = artifacts.problems(wheel(tmp_path, **change))
    assert problem in lack
    assert lack.startswith("thing-1.0-py3-none-any.whl: ")
