# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Set-up: when it begins anew, when it refuses, which Python it takes."""

import os
import shutil
import subprocess
import sys

import pytest

import setup_env
import workspace

pytestmark = pytest.mark.once

OLD = 'case "$2" in *print*) echo 3.8.18;; *) exit 1;; esac'
INSTEAD = "import setup_env; setup_env.install = lambda _: print('installs'); setup_env.main()"
NOW = "import sys, setup_env; print(setup_env.digest('%d.%d' % sys.version_info[:2]), end='')"


def write_program(file, body):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


def output(frame, program) -> str:
    """Runs a program that imports the scripts of the copy."""
    path = {**os.environ, "PYTHONPATH": str(frame / "scripts")}
    return subprocess.check_output([sys.executable, "-c", program], env=path, text=True)


def test_an_unfinished_one_and_a_changed_dependency_begin_anew(frame):
    (frame / ".venv").mkdir()
    (frame / ".venv" / setup_env.STAMP.name).touch()  # as a killed one leaves it
    for _ in range(2):
        assert [output(frame, INSTEAD).count("installs") for _ in range(2)] == [1, 0]
        with (frame / "packages/data/pyproject.toml").open("a") as file:
            file.write("# a new dependency\n")


def test_a_fitting_python_is_found_and_somebody_elses_environment_is_left_alone(frame, tmp_path):
    mine, folder = frame / ".venv/my-work", tmp_path / "bin"
    write_program(mine, "")
    write_program(folder / "python3", OLD)
    newer = folder / "python{}.{}".format(*sys.version_info)
    write_program(newer, f'exec "{sys.executable}" "$@"')
    (folder / "dirname").symlink_to(shutil.which("dirname"))

    def refusal(**environment: str) -> str:
        path = {"PATH": str(folder), **environment}
        done = subprocess.run(frame / "scripts/setup", env=path, capture_output=True, text=True)
        assert done.returncode == 1
        return done.stderr

    assert f"{frame}/.venv exists without dovetail-setup" in refusal()
    assert list(mine.parent.iterdir()) == [mine]
    assert "needs Python 3.11 or later; python3 is version=3.8.18" in refusal(PYTHON="python3")
    newer.unlink()
    assert "needs Python 3.11 or later" in refusal()
    write_program(frame / ".venv/bin/python", f'echo "{sys.executable}"')
    assert f"{frame}/.venv exists without dovetail-setup" in refusal()  # by the Python of .venv


def test_the_notebooks_open_with_the_kernel_of_the_environment(frame):
    """The script installs the extra, then starts JupyterLab on the first notebook."""
    bin = frame / ".venv/bin"
    shown = 'echo "$(basename "$0") $@ $(command -v python) $JUPYTER_PREFER_ENV_PATH"'
    for name in ("uv", "jupyter", "python"):
        write_program(bin / name, shown)
    (frame / ".venv" / setup_env.STAMP.name).write_text(output(frame, NOW))
    line, path = [frame / "scripts/notebooks", "--no-browser"], {"PYTHON": sys.executable}
    done = subprocess.check_output(line, env=os.environ | path, text=True)
    installed, opened = done.splitlines()
    assert installed.startswith(f"uv pip install --python {bin}/python --constraint")
    assert all(f" {name}>=" in installed for name in ("ipykernel", "jupyterlab", "matplotlib"))
    first = "examples/notebooks/language_model.ipynb"
    assert (workspace.ROOT / first).is_file()
    assert opened.startswith(f"jupyter lab --LabApp.default_url=/lab/tree/{first} ")
    assert opened.endswith(f" --no-browser {bin}/python 1")


def test_nothing_for_an_accelerator_is_installed():
    """Every process of JAX beside libtpu would try to start a TPU."""
    extras = ",".join(word.partition("[")[2] for word in setup_env.requirements())
    assert [name in extras for name in ("grpc", "tpu", "cuda")] == [True, False, False]
