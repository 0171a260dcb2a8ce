# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: types checked at run time, and the command over a repository."""

import os
import shutil

import jaxtyping
import numpy as np
import pytest

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_serve", "beartype.beartype")

from dovetail_serve import Tensor, export  # noqa: E402
from dovetail_serve.command import cli  # noqa: E402
from dovetail_serve.testing import save_mlp  # noqa: E402


@pytest.fixture(scope="session")
def versions(tmp_path_factory):
    """A directory with versions 1 and 2 of `mlp`, and their functions."""
    path = tmp_path_factory.mktemp("versions")
    return path, [save_mlp(path / f"{v}", seed=v, batch_sizes=(1, 4)) for v in (1, 2)]


@pytest.fixture(scope="module")
def repository(versions, tmp_path_factory):
    """`repo` with versions 1 and 2 of `mlp`, whose functions are returned too."""
    root = tmp_path_factory.mktemp("here")
    shutil.copytree(versions[0], root / "repo/mlp")
    return root, versions[1]


@pytest.fixture
def here(repository, monkeypatch):
    """The directory of `repo`, which is the current one."""
    monkeypatch.chdir(repository[0])
    return repository[0]


@pytest.fixture
def command(here, capsys):
    """Runs the command; returns its code, output and errors."""

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            code = cli.main(argv)
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def umask():
    """Sets the umask until the end of a test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.fixture
def damaged():
    """Saves a bundle with a flipped bit in its last weight."""

    def save(path):
        save_mlp(path, batch_sizes=(4,))
        file = path / "weights.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 4
        file.chmod(0o644)  # weights are read-only
        file.write_bytes(content)
        return str(path)

    return save


@pytest.fixture
def unbatched(tmp_path):
    """A bundle without a batch axis, and its input x: y = x @ x.T."""
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    export(
        lambda params, *, x: {"y": x @ params["w"]},
        {"w": x.T.copy()},
        inputs={"x": Tensor((3, 5), "float32")},
        example={"x": x},
        platforms=("cpu",),
        batch_sizes=(),
    ).save(tmp_path / "1")
    return tmp_path / "1", x
