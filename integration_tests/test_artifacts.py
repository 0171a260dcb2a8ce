# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The check of wheels and sdists before an upload."""

import hashlib
import io
import tarfile
import zipfile

import pytest

import artifacts
import workspace

pytestmark = pytest.mark.once

METADATA = """Metadata-Version: 2.4
Name: thing
Version: 1.0
License-Expression: Apache-2.0
License-File: LICENSE
Keywords: jax
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

# A thing
"""
LICENSE = (workspace.ROOT / "LICENSE").read_text()


def wheel(folder, *, metadata=METADATA, licence=LICENSE, typed=True):
    file = folder / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("thing-1.0.dist-info/METADATA", metadata)
        archive.writestr("thing-1.0.dist-info/licenses/LICENSE", licence)
        if typed:
            archive.writestr("thing/py.typed", "")
    return file


def sdist(folder, files):
    file = folder / "thing-1.0.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"thing-1.0/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return file


def test_a_whole_wheel_and_a_whole_sdist_have_no_problem(tmp_path):
    files = {"PKG-INFO": METADATA, "LICENSE": LICENSE, "src/thing/py.typed": ""}
    assert artifacts.problems(wheel(tmp_path)) == []
    assert artifacts.problems(sdist(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"licence": "other"}, "LICENSE must be in it"),
        ({"typed": False}, "py.typed must be in it"),
        ({"metadata": METADATA.replace("Expression: A", "Expression: B")}, "must be Apache-2.0"),
        ({"metadata": METADATA.replace("Typing :: Typed", "License :: X")}, "PEP 639"),
        ({"metadata": METADATA.replace("Classifier", "Other")}, "classifier Typing :: Typed"),
        ({"metadata": METADATA.replace("Keywords", "Other")}, "keywords must be"),
        ({"metadata": METADATA.replace("text/markdown", "text/plain")}, "README must be"),
    ],
    ids=["licence", "typed", "expression", "classifier", "typing", "keywords", "readme"],
)
def test_each_lack_is_named(tmp_path, change, problem):
    lacks = artifacts.problems(wheel(tmp_path, **change))
    assert [lack for lack in lacks if problem in lack], lacks
    assert all(lack.startswith("thing-1.0-py3-none-any.whl: ") for lack in lacks)


def test_two_files_of_metadata_are_refused(tmp_path):
    file = wheel(tmp_path)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("other-1.0.dist-info/METADATA", METADATA)
    with pytest.raises(ValueError, match="must have one file of metadata") as error:
        artifacts.problems(file)
    assert "build it by uv build" in str(error.value)


def test_the_table_has_size_digest_and_name(tmp_path):
    file = wheel(tmp_path)
    data = file.read_bytes()
    size, digest, name = artifacts.table([file]).split()
    assert (size, name) == (f"{len(data):,}", file.name)
    assert digest == hashlib.sha256(data).hexdigest()
