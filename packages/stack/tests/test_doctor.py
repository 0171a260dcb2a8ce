# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys

import pytest

from dovetail_stack import doctor


def test_what_is_installed_here_is_what_was_tested():
    findings = list(doctor.check_versions(doctor.pins()))
    assert {"jax, jaxlib", "flax", "dovetail-train", "dovetail-serve"} <= {
        finding.subject for finding in findings
    }
    assert [finding for finding in findings if finding.wrong] == []


def test_pins_follow_the_python_that_runs():
    other = {"3.11": "0.12.0.1", "3.12": "0.10.2"}["3.11" if sys.version_info < (3, 12) else "3.12"]
    assert doctor.pins()["jax"] == importlib.metadata.version("jax") != other


@pytest.mark.parametrize(
    "name, wanted, state",
    [
        ("flax", "0.0.1", ", tested with 0.0.1"),
        ("no-such-thing", "1.0", "missing, tested with 1.0"),
    ],
)
def test_another_version_and_none_are_findings_with_a_remedy(name, wanted, state):
    (finding,) = doctor.check_versions({name: wanted})
    assert finding.state.endswith(state)
    assert finding.install == (f"{name}=={wanted}",)


def test_jax_and_jaxlib_are_installed_together():
    jaxlib = importlib.metadata.version("jaxlib")
    (finding,) = doctor.check_versions({"jax": "0.0.1", "jaxlib": jaxlib})
    assert finding.install == ("jax==0.0.1", f"jaxlib=={jaxlib}")
    assert finding.state.endswith(f", tested with 0.0.1 and {jaxlib}")


@pytest.mark.parametrize("pip", [True, False])
def test_one_command_installs_all_by_pip_or_where_there_is_none_by_uv(pip, monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: pip or None)
    findings = [
        doctor.Finding(subject="a", state="", install=("a==1", "b[c]==2")),
        doctor.Finding(subject="fine", state=""),
        doctor.Finding(subject="d", state="", install=("d==3",)),
        doctor.Finding(subject="e", state="", remedy="unset E"),
    ]
    python = shlex.quote(sys.executable)
    by = f"{python} -m pip install" if pip else f"uv pip install --python {python}"
    assert doctor.remedies(findings) == [f"{by} a==1 'b[c]==2' d==3", "unset E"]


def _doctor(*options, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dovetail_stack", "doctor", *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.thorough
def test_the_command_lists_devices_and_returns_0_where_all_is_well():
    done = _doctor(JAX_PLATFORMS="cpu", PATH="")
    assert done.returncode == 0, done.stdout
    assert "(cpu)" in done.stdout
    assert "!!" not in done.stdout


@pytest.mark.thorough
def test_a_backend_that_does_not_start_is_a_finding():
    done = _doctor(JAX_PLATFORMS="no_such_backend")
    assert done.returncode == 1
    assert "could not start a backend" in done.stdout
    assert "To mend it, type:\n" in done.stdout
    done = _doctor("--json", JAX_PLATFORMS="no_such_backend")
    assert done.returncode == 1
    content = json.loads(done.stdout)
    assert content["commands"] == ["unset JAX_PLATFORMS"]
    assert content["findings"][-1]["subject"] == "devices"


def test_a_gpu_that_jax_does_not_use_is_a_finding(tmp_path):
    (tmp_path / "nvidia-smi").write_text("")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = _doctor(JAX_PLATFORMS="cpu", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "pip install " in done.stdout
    assert "'jax[cuda13]==" in done.stdout


@pytest.mark.thorough
def test_the_command_works_where_a_library_cannot_be_imported(tmp_path):
    (tmp_path / "flax.py").write_text("raise ImportError('broken')")
    done = _doctor(JAX_PLATFORMS="cpu", PATH="", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
