# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Set-up: when it begins anew, when it refuses, which Python it takes."""

import os
import shutil
import subprocess
import sys

import pytest

import setup_env

pytestmark = pytest.mark.once

OLD = 'case "$2" in *print*) echo 3.8.18;; *) exit 1;; esac'
INSTEAD = "import setup_env; setup_env.install = lambda _: print('installs'); setup_env.main()"


def test_an_unfinished_one_and_a_changed_dependency_begin_anew(frame):
    def installs() -> int:
        line = [sys.executable, "-c", INSTEAD]
        path = {**os.environ, "PYTHONPATH": str(frame / "scripts")}
        return subprocess.check_output(line, env=path, text=True).count("installs")

    (frame / ".venv").mkdir()
    (frame / ".venv" / setup_env.STAMP.name).touch()  # as a killed one leaves it
    assert [installs(), installs()] == [1, 0]
    with (frame / "packages" / "data" / "pyproject.toml").open("a") as file:
        file.write("# a new dependency\n")
    assert [installs(), installs()] == [1, 0]


def test_a_fitting_python_is_found_and_somebody_elses_environment_is_left_alone(frame, tmp_path):
    mine = frame / ".venv" / "my-work"
    mine.parent.mkdir()
    mine.touch()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "dirname").symlink_to(shutil.which("dirname"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    launchers = {"python3": OLD, f"python{version}": f'exec "{sys.executable}" "$@"'}
    for name, body in launchers.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    def refusal(**environment: str) -> str:
        line = [str(frame / "scripts" / "setup")]
        path = {"PATH": str(folder), **environment}
        done = subprocess.run(line, env=path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr

    assert f"{frame}/.venv exists without dovetail-setup" in refusal()
    assert list(mine.parent.iterdir()) == [mine]
    assert "needs Python 3.11 or later; python3 is version=3.8.18" in refusal(PYTHON="python3")


def test_nothing_for_an_accelerator_is_installed():
    """Every process of JAX beside libtpu would try to start a TPU."""
    extras = ",".join(word.partition("[")[2] for word in setup_env.requirements())
    assert "grpc" in extras
    assert "tpu" not in extras
    assert "cuda" not in extras
