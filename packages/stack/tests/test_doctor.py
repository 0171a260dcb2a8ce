# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import os
import subprocess
import sys

import pytest

from dovetail import doctor


def test_what_is_installed_here_is_what_was_tested():
    findings = list(doctor.check_versions(doctor.pins()))
    assert {"jax", "flax", "dovetail-train"} <= {finding.subject for finding in findings}
    assert [finding for finding in findings if finding.remedy] == []


def test_pins_follow_the_python_that_runs():
    other = {"3.11": "0.12.0.1", "3.12": "0.10.2"}["3.11" if sys.version_info < (3, 12) else "3.12"]
    assert doctor.pins()["jax"] == importlib.metadata.version("jax") != other


@pytest.mark.parametrize(
    "name, wanted, state",
    [("jax", "0.0.1", ", tested with 0.0.1"), ("no-such-thing", "1.0", "missing, tested with 1.0")],
)
def test_another_version_and_none_are_findings_with_a_remedy(name, wanted, state):
    (finding,) = doctor.check_versions({name: wanted})
    assert finding.state.endswith(state)
    assert finding.remedy == f"python -m pip install '{name}=={wanted}'"


def _doctor(**environment):
    return subprocess.run(
        [sys.executable, "-m", "dovetail", "doctor"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_lists_devices_and_returns_0_where_all_is_well():
    done = _doctor(JAX_PLATFORMS="cpu", PATH="")
    assert done.returncode == 0, done.stdout
    assert "(cpu)" in done.stdout
    assert "!!" not in done.stdout


def test_a_backend_that_does_not_start_is_a_finding():
    done = _doctor(JAX_PLATFORMS="no_such_backend")
    assert done.returncode == 1
    assert "could not start a backend" in done.stdout
    assert "To mend it, type:\n" in done.stdout


def test_a_gpu_that_jax_does_not_use_is_a_finding(tmp_path):
    (tmp_path / "nvidia-smi").write_text("")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = _doctor(JAX_PLATFORMS="cpu", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "python -m pip install 'jax[cuda13]==" in done.stdout


def test_the_command_works_where_a_library_cannot_be_imported(tmp_path):
    (tmp_path / "flax.py").write_text("raise ImportError('broken')")
    done = _doctor(JAX_PLATFORMS="cpu", PATH="", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
