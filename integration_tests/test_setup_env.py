# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Set-up on the machines that people have: offline, killed, full, without a fitting Python.

Python, venv and pip are real here; uv is a stand-in wheel that writes down how it was called, so
that nothing is downloaded.
"""

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import setup_env
import workspace

UV = r"""#!/bin/sh
{ printf '%s\t' "$@"; echo; } >> "$UV_LOG"
case "${UV_DOES:-}" in kill) kill -9 $PPID ;; esac
"""


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An index without network that holds only the stand-in for uv; returns uv's log."""
    version = workspace.constraints(f"{sys.version_info.major}.{sys.version_info.minor}")["uv"]
    index = tmp_path / "index"
    index.mkdir()
    info, data = f"uv-{version}.dist-info", f"uv-{version}.data"
    with zipfile.ZipFile(index / f"uv-{version}-py3-none-any.whl", "w") as wheel:
        script = zipfile.ZipInfo(f"{data}/scripts/uv")
        script.external_attr = 0o100755 << 16  # a regular file that runs
        wheel.writestr(script, UV)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", index.as_uri())
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("UV_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def set_up(root: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run scripts/setup from a folder that has nothing to do with it."""
    environment = {**os.environ, **environment}
    line = [str(root / "scripts" / "setup")]
    return subprocess.run(
        line, cwd=root.parent, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.thorough
@pytest.mark.once
def test_killed_then_failed_then_made_then_at_once(frame, offline, monkeypatch):
    killed = set_up(frame, UV_DOES="kill")
    assert killed.returncode == -signal.SIGKILL
    stamp = frame / ".venv" / "dovetail-setup"
    assert stamp.read_text() == ""
    debris = frame / ".venv" / "lib" / "half-a-file"
    debris.touch()
    (frame / ".venv.old" / "lib").mkdir(parents=True)  # killed while it deleted, too

    monkeypatch.setenv("PIP_CONSTRAINT", "nowhere")
    failed = set_up(frame)
    assert failed.returncode == 1
    assert "installing uv failed" in failed.stderr
    assert stamp.read_text() == ""
    monkeypatch.delenv("PIP_CONSTRAINT")
    again = set_up(frame)
    assert again.returncode == 0, again.stderr
    assert len(stamp.read_text()) == 64
    assert not debris.exists()
    assert not (frame / ".venv.old").exists()
    calls = offline.read_text().splitlines()
    assert len(calls) == 2
    for member in workspace.members(frame).values():
        assert f"--editable\t{member.editable()}" in calls[-1]
    assert f"--constraint\t{frame}/constraints/" in calls[-1]

    assert set_up(frame).returncode == 0
    assert offline.read_text().splitlines() == calls


INSTEAD = "import setup_env; setup_env.install = lambda _: print('installs'); setup_env.main()"


def test_a_changed_dependency_begins_anew(frame):
    def installs() -> int:
        (frame / ".venv").mkdir(exist_ok=True)
        (frame / ".venv" / setup_env.STAMP).touch()
        line = [sys.executable, "-c", INSTEAD]
        path = {**os.environ, "PYTHONPATH": str(frame / "scripts")}
        return subprocess.check_output(line, env=path, text=True).count("installs")

    assert [installs(), installs()] == [1, 0]
    with (frame / "packages" / "data" / "pyproject.toml").open("a") as file:
        file.write("# a new dependency\n")
    assert [installs(), installs()] == [1, 0]


def test_somebody_elses_environment_is_left_alone(frame, offline):
    mine = frame / ".venv" / "my-work"
    mine.parent.mkdir()
    mine.touch()
    done = set_up(frame)
    assert done.returncode == 1
    assert f"{frame}/.venv exists" in done.stderr
    assert "Move it away or delete it" in done.stderr
    assert list(mine.parent.iterdir()) == [mine]


def fake_path(folder: Path, **commands: str) -> str:
    """A PATH that holds `dirname` and these commands alone, each a shell script."""
    folder.mkdir()
    (folder / "dirname").symlink_to(shutil.which("dirname"))
    for name, body in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return str(folder)


OLD = 'case "$2" in *print*) echo 3.8.18;; *) exit 1;; esac'


def test_a_fitting_python_is_found_behind_a_broken_launcher(frame, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHON", raising=False)
    (frame / ".venv" / "foreign").mkdir(parents=True)  # set-up begins, and stops before it installs
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    real = f'exec "{sys.executable}" "$@"'
    path = fake_path(tmp_path / "bin", python3=OLD, **{f"python{version}": real})
    done = set_up(frame, PATH=path)
    assert "this script did not make it" in done.stderr
    asked = set_up(frame, PATH=path, PYTHON="python3")
    assert asked.returncode == 1
    for word in ("Python 3.11 or later", "python3 is version=3.8.18", "apt install", "PYTHON="):
        assert word in asked.stderr


def test_a_python_without_ensurepip_and_a_full_disk_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(setup_env, "VENV", tmp_path / ".venv")
    usage = shutil.disk_usage(tmp_path)._replace(free=1_500_000_000)
    monkeypatch.setattr(setup_env.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(setup_env.SetupError, match=r"needs 2.0 GB .* 1.5 GB are free.*again"):
        setup_env.check()
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(setup_env.SetupError, match=r"own ensurepip.*apt install python3.*PYTHON="):
        setup_env.check()
